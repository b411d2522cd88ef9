"""Rejection sampling: responses to every prompt, scored, and the best ones written as training data."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Protocol

from rich.markup import escape

from titanrl.config.dump import to_table
from titanrl.data.loader import Workers
from titanrl.data.prompts import PromptLoader, PromptTables, open_prompts
from titanrl.data.tokenizer import ChatTokenizer
from titanrl.engine import collectives, init_distributed
from titanrl.errors import ConfigError
from titanrl.report.progress import StepView
from titanrl.rollout.context import GeneratorTables
from titanrl.rollout.generator import generate_and_score, load_generator
from titanrl.rollout.rejection_sampling_folder import RFTFolder
from titanrl.rollout.selection import select
from titanrl.runtime import status
from titanrl.runtime.stop import StopRequested, abandonable

if TYPE_CHECKING:
    from pathlib import Path

    from titanrl.config.report_tables import Report
    from titanrl.config.rft import RFT
    from titanrl.rollout.context import GeneratorTables
from titanrl.rollout.generator import Generator

__all__ = ["RejectionSamplingTables", "collect"]


class RejectionSamplingTables(GeneratorTables, PromptTables, Protocol):
    """The tables of an experiment that rejection sampling reads."""

    @property
    def rft(self) -> RFT | None: ...
    @property
    def report(self) -> Report: ...


def collect(tables: RejectionSamplingTables, path: Path) -> Path:
    """Sample, score and select responses to [prompts]; return the file of the selected ones.

    Calling it again with the same experiment continues an interrupted collection at the next prompt.

    Args:
        tables: a checked experiment.
        path: the folder, see ``RFTFolder``.

    Raises:
        ConfigError: [rft] is missing, the source has too few prompts, a prompt is too long, or the folder
            holds something else.
    """
    settings = tables.rft
    if settings is None:
        raise ConfigError("[rft] is missing; add it: it configures sampling and selection.")
    assert tables.prompts is not None
    assert tables.sampler is not None
    folder = RFTFolder(path, settings.write, to_table(tables))
    init_distributed()
    num_done = collectives.broadcast_object(folder.position())
    loader = open_prompts(
        tables.prompts,
        ChatTokenizer(tables.model.path, tables.model.chat_template),
        training=tables.training,
        sampler=tables.sampler,
        seed=tables.run.seed,
        shuffle=False,
        workers=Workers(tables.loop.data_workers, settings.prompts_per_batch),
    )
    available = len(loader.source)
    num_prompts = available if settings.num_prompts is None else settings.num_prompts
    if num_prompts > available:
        raise ConfigError(
            f"[rft] num_prompts must be <= {available}, the size of the source, got {num_prompts}."
        )
    if num_done < num_prompts:
        with abandonable():
            generator = load_generator(tables)
        with closing(generator):
            loader.loader.load_state_dict({"position": num_done})
            with closing(loader.loader):
                prompts = range(num_done, num_prompts)
                _collect(generator, settings, loader, folder, prompts, live=tables.report.progress)
    collectives.broadcast_object(None)  # No rank continues before the first one has written everything.
    return folder.rows


def _collect(
    generator: Generator,
    settings: RFT,
    loader: PromptLoader,
    folder: RFTFolder,
    prompts: range,
    *,
    live: bool,
) -> None:
    num_samples, size = settings.samples_per_prompt, settings.prompts_per_batch
    if generator.is_main:
        folder.open(prompts.start)
    batches = [prompts[start : start + size] for start in range(0, len(prompts), size)]
    view = StepView(len(batches), enabled=generator.is_main, live=live)
    with closing(folder), view:
        failures, reasons = 0, dict[str, str]()
        for batch in batches:
            began = time.perf_counter()
            # Seeds depend on the prompt's index alone, so the batch size changes no response.
            requests = loader.next_batch(len(batch), num_samples, first_group=batch.start)
            status.update(stage=f"sampling of prompt {batch.start + 1}")
            try:
                rollouts = generate_and_score(generator, requests, step=0, seed=generator.seed)
            except StopRequested:
                raise StopRequested(
                    f"{batch.start} of {prompts.stop} prompts are done and written to '{folder.path}'."
                ) from None
            failures, reasons = failures + rollouts.failures, rollouts.reasons | reasons
            if not generator.is_main:
                continue
            for number, index in enumerate(batch):
                own = rollouts.responses[number * num_samples : (number + 1) * num_samples]
                messages = loader.source[index].messages
                folder.write(index, own, select(settings, messages, own, folder.seen))
            sums = folder.write_statistics()
            metrics = {
                "reward/mean": sums["reward_mean"],
                "sample/response_tokens_mean": sums["tokens_mean"],
                "rft/rows": sums["rows"],
            }
            view.step(metrics, {"sample": time.perf_counter() - began})
        if generator.is_main:
            view.message(f"{sums['rows']} rows of {sums['prompts']} prompts are in {folder.rows}")
            if failures:
                first = "; ".join(f"{label}: {reason}" for label, reason in reasons.items())
                text = f"{failures} scores failed; those responses get the failure_score of their [[reward]]"
                view.message(escape(f"{text}. First {first}"))
