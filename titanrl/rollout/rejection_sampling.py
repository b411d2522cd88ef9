"""Rejection sampling, whole: answers to every prompt, judged, and the good ones written as training data."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

from rich.markup import escape

from titanrl.config.dump import to_table
from titanrl.data.loader import Workers
from titanrl.data.prompts import PromptLoader, prompt_feed
from titanrl.engine import collectives, init_distributed
from titanrl.errors import ConfigError
from titanrl.report.progress import StepView
from titanrl.rollout.generator import generate_and_score, load_generator
from titanrl.rollout.rejection_sampling_folder import RFTFolder
from titanrl.rollout.selection import select

if TYPE_CHECKING:
    from pathlib import Path

    from titanrl.config.experiment import Experiment
    from titanrl.config.rft import RFT
    from titanrl.rollout.generator import Generator

__all__ = ["collect"]


def collect(experiment: Experiment, to: Path) -> Path:
    """Samples, judges and selects answers to the prompts of an experiment; returns the file of the kept ones.

    An interrupted call is carried on by the same call: at the next prompt, in the same files.

    Args:
        experiment: a checked experiment. to: the folder, as ``RFTFolder`` describes it.

    Raises:
        ConfigError: no [rft], more prompts wanted than there are, a prompt that is too long, or ``to`` holds
            something else.
    """
    settings = experiment.rft
    if settings is None:
        raise ConfigError("[rft] is missing; add it: it says what is sampled and which answers are kept.")
    assert experiment.prompts is not None
    folder = RFTFolder(to, settings.write, to_table(experiment))
    init_distributed()
    done = collectives.broadcast_object(folder.position())
    source = experiment.prompts.open()
    wanted = len(source) if settings.num_prompts is None else settings.num_prompts
    if wanted > len(source):
        raise ConfigError(f"[rft] num_prompts must be <= {len(source)}, the prompts there are, got {wanted}.")
    if done < wanted:
        with closing(load_generator(experiment)) as host:
            workers = Workers(experiment.loop.data_workers, ahead=settings.prompts_per_batch)
            feed = prompt_feed(
                experiment, source, host.tokenizer, table="prompts", shuffle=False, workers=workers
            )
            feed.loader.load_state_dict({"position": done})
            with closing(feed.loader):
                _walk(host, settings, feed, folder, range(done, wanted), live=experiment.report.progress)
    collectives.broadcast_object(None)  # No rank goes on before the first one has written everything.
    return folder.rows


def _walk(
    host: Generator, settings: RFT, feed: PromptLoader, folder: RFTFolder, prompts: range, *, live: bool
) -> None:
    samples, size = settings.samples_per_prompt, settings.prompts_per_batch
    if host.is_main:
        folder.open(prompts.start)
    batches = [prompts[place : place + size] for place in range(0, len(prompts), size)]
    view = StepView(len(batches), enabled=host.is_main, live=live)
    with closing(folder), view:
        failures, reasons = 0, dict[str, str]()
        for batch in batches:
            began = time.perf_counter()
            # Seeds follow from a prompt's number, so how prompts are cut into batches changes no answer.
            rows = feed.next_batch(len(batch), samples, first_group=batch.start)
            answers, failed, found = generate_and_score(host, rows, step=0, seed=host.seed)
            failures, reasons = failures + failed, found | reasons
            if not host.is_main:
                continue
            for place, index in enumerate(batch):
                own = answers[place * samples : (place + 1) * samples]
                folder.write(index, own, select(settings, feed.source[index].messages, own, folder.seen))
            sums = folder.write_statistics()
            shown = {"reward/mean": sums["reward_mean"], "sample/response_tokens_mean": sums["tokens_mean"]}
            view.step({**shown, "rft/rows": sums["rows"]}, {"sample": time.perf_counter() - began})
        if host.is_main:
            view.message(f"{sums['rows']} rows of {sums['prompts']} prompts are in {folder.rows}")
            if failures:
                why = "; ".join(f"{label}: {reason}" for label, reason in reasons.items())
                text = f"{failures} scores failed; those responses get the failure_score of their [[reward]]"
                view.message(escape(f"{text}. First {why}"))
