"""Every preset of experiments/algorithms says what its row of the catalogue says, and trains."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from typing import Any

import pytest
import torch

from tests.experiments.conftest import PROMPTS, REWARDS, ROOT, TEACHER, Train, Write, data
from tests.metrics_page import documented_metrics
from titanrl.config import Experiment, load
from titanrl.registry import name_of

DOCUMENTED = documented_metrics("no_digit", "repetition", "overlong")
PRESETS = sorted(path.stem for path in (ROOT / "experiments" / "algorithms").glob("*.toml"))
OVERLONG = """
[[reward]]
name = "overlong"
max_length = 8
buffer = 2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the catalogue says of a preset: components as ``name(key=value, ...)``, other than defaults."""

    advantage: str | None = None
    loss: str
    aggregation: str
    kl: str | None = None
    filter: str | None = None
    correction: str | None = None
    top_k: int | None = None
    old_logprob: str = "recompute"
    samples: int = 8
    minibatches: int = 1
    epochs: int = 1
    critic: str | None = None
    lr: float = 1e-6
    adds: str = PROMPTS + REWARDS
    """What an experiment on the preset must say beside its sizes: prompts and rewards, or ``data(...)``."""
    overrides: tuple[str, ...] = ()
    """What so short a run needs changed."""
    anchored: bool = False
    """Whether a [reference] is there for something else than a KL term."""
    head: str = "language"


def fixed(loss: str, format: str, aggregation: str = "sequence_mean", **others: Any) -> Row:
    """Returns the row of an offline preset."""
    return Row(loss=loss, aggregation=aggregation, adds=data(format), **others)


def dpo(keys: str = "") -> Row:
    """Returns the row of a variant of DPO."""
    return fixed(f"dpo({keys})" if keys else "dpo", "preference", lr=5e-7, anchored=True)


ROWS = {
    "grpo": Row(advantage="grpo", loss="ppo_clip", aggregation="sequence_mean", kl="k3 loss 0.04"),
    "dr_grpo": Row(
        advantage="grpo(std=none)",
        loss="ppo_clip",
        aggregation="constant_length(length=8)",
        adds=PROMPTS + REWARDS + "[algorithm.aggregation]\nlength = 8\n",
    ),
    "dapo": Row(
        advantage="grpo",
        loss="ppo_clip(clip_high=0.28)",
        aggregation="token_mean",
        filter="zero_variance",
        samples=16,
        adds=PROMPTS + REWARDS + OVERLONG,
    ),
    "rloo": Row(
        advantage="rloo(source=token_reward)",
        loss="ppo_clip",
        aggregation="sequence_sum",
        kl="k1 reward 0.05",
        samples=4,
    ),
    "reinforce_plus_plus": Row(
        advantage="reinforce_plus_plus",
        loss="ppo_clip",
        aggregation="token_mean",
        kl="k1 reward 0.01",
        samples=1,
    ),
    "reinforce_plus_plus_baseline": Row(
        advantage="reinforce_plus_plus_baseline",
        loss="ppo_clip",
        aggregation="token_mean",
        kl="k2 loss 0.01",
        samples=4,
    ),
    "ppo": Row(
        advantage="gae",
        loss="ppo_clip",
        aggregation="token_mean",
        kl="k1 reward adaptive(coefficient=0.05)",
        epochs=4,
        critic="value at 1e-05 after 0 steps",
    ),
    "ppo_shared": Row(
        advantage="gae",
        loss="ppo_clip",
        aggregation="token_mean",
        kl="k1 reward adaptive(coefficient=0.05)",
        epochs=4,
        lr=1e-5,
        critic="value at 0.1 of the policy's loss",
    ),
    "vapo": Row(
        advantage="gae(lam_value=1.0, length_alpha=0.05)",
        loss="ppo_clip(clip_high=0.28, positive_nll=0.1)",
        aggregation="token_mean",
        samples=16,
        critic="value at 1e-05 after 50 steps",
        overrides=("critic.warmup_steps=2",),
    ),
    "gspo": Row(advantage="grpo", loss="gspo", aggregation="sequence_mean", minibatches=4),
    "luspo": Row(advantage="grpo", loss="gspo(clip_low=0.2, clip_high=0.2)", aggregation="sequence_sum"),
    "cispo": Row(advantage="grpo", loss="cispo", aggregation="token_mean", samples=16),
    "sapo": Row(advantage="grpo", loss="sapo", aggregation="sequence_mean"),
    "gmpo": Row(advantage="grpo", loss="gmpo", aggregation="sequence_mean"),
    "gpg": Row(advantage="gpg", loss="reinforce", aggregation="token_mean", filter="zero_variance"),
    "remax": Row(advantage="remax", loss="reinforce", aggregation="sequence_sum", kl="k1 reward 0.01"),
    "opo": Row(advantage="opo", loss="ppo_clip", aggregation="token_mean"),
    "kimi": Row(advantage="grpo(std=none)", loss="mirror_descent", aggregation="sequence_mean"),
    "max_rl": Row(advantage="max_rl", loss="reinforce", aggregation="token_mean"),
    "grpo_passk": Row(advantage="grpo_passk", loss="ppo_clip", aggregation="sequence_mean"),
    "gdpo": Row(
        advantage="gdpo(rewards=('no_digit', 'repetition'))",
        loss="ppo_clip",
        aggregation="sequence_mean",
        adds=PROMPTS + REWARDS + "[algorithm.advantage]\nrewards = ['no_digit', 'repetition']\n",
    ),
    "a2po": Row(advantage="soft_baseline", loss="mirror_descent", aggregation="sequence_mean"),
    "dppo": Row(advantage="grpo(std=none)", loss="dppo_tv", aggregation="token_mean", old_logprob="sampler"),
    "clip_cov": Row(advantage="grpo", loss="clip_cov", aggregation="token_mean"),
    "kl_cov": Row(advantage="grpo", loss="kl_cov", aggregation="token_mean"),
    "vespo": Row(advantage="grpo", loss="vespo", aggregation="token_mean"),
    "decoupled_ppo": Row(
        advantage="grpo", loss="ppo_clip", aggregation="token_mean", correction="tis(cap=5.0)"
    ),
    "scalerl": Row(
        advantage="grpo(std=batch)", loss="cispo", aggregation="group_mean", filter="zero_variance"
    ),
    "entropy_80_20": Row(
        advantage="grpo", loss="ppo_clip(clip_high=0.28)", aggregation="token_mean", correction="top_entropy"
    ),
    "gkd": Row(
        loss="topk_distill(direction=jsd)", aggregation="token_mean", top_k=64, adds=PROMPTS + TEACHER
    ),
    "on_policy_distill": Row(
        advantage="teacher_kl",
        loss="importance_sampling",
        aggregation="token_mean",
        samples=4,
        adds=PROMPTS + TEACHER,
    ),
    "pkpo": Row(advantage="pkpo", loss="reinforce", aggregation="token_mean"),
    "dgpo": Row(advantage="dgpo", loss="ppo_clip", aggregation="token_mean"),
    "codapo": Row(advantage="codapo", loss="ppo_clip", aggregation="sequence_mean"),
    "spo": Row(advantage="spo", loss="ppo_clip", aggregation="token_mean", samples=1),
    "topr": Row(advantage="grpo(std=none)", loss="topr", aggregation="sequence_sum", old_logprob="sampler"),
    "fipo": Row(advantage="grpo", loss="fipo(clip_high=0.28)", aggregation="token_mean"),
    "real": Row(loss="real", aggregation="sequence_mean"),
    "gvpo": Row(advantage="grpo(std=none)", loss="gvpo", aggregation="sequence_mean"),
    "iw_opd": Row(loss="iw_opd", aggregation="token_mean", samples=4, adds=PROMPTS + TEACHER),
    "prime_opd": Row(loss="prime_opd", aggregation="token_mean", samples=4, adds=PROMPTS + TEACHER),
    "log_linear_proximal": Row(
        advantage="grpo", loss="log_linear_proximal", aggregation="token_mean", old_logprob="sampler"
    ),
    "sdar": Row(advantage="grpo", loss="sdar", aggregation="token_mean", adds=PROMPTS + REWARDS + TEACHER),
    "rlsd": Row(
        advantage="rlsd", loss="ppo_clip", aggregation="token_mean", adds=PROMPTS + REWARDS + TEACHER
    ),
    "kimi_k25": Row(
        advantage="grpo(std=none)",
        loss="dppo_tv(low=0.1, high=0.1, symmetric=True, penalty=0.001)",
        aggregation="token_mean",
        old_logprob="sampler",
    ),
    "vaco": Row(
        advantage="grpo", loss="ppo_clip", aggregation="token_mean", correction="vaco(threshold=0.05)"
    ),
    "mopd": Row(
        advantage="teacher_kl",
        loss="reinforce",
        aggregation="token_mean",
        correction="icepop",
        samples=4,
        adds=PROMPTS + TEACHER,
    ),
    "two_grpo": Row(advantage="grpo", loss="ppo_clip", aggregation="sequence_mean", samples=2),
    "kdrl": Row(
        advantage="grpo(std=none)",
        loss="ppo_clip",
        aggregation="token_mean",
        kl="k1 advantage 0.002",
        adds=PROMPTS + REWARDS + '[reference]\npath = "{folder}/teacher"\n',
    ),
    "distill": Row(loss="topk_distill", aggregation="token_mean", top_k=64, adds=data("messages") + TEACHER),
    "dpo": dpo(),
    "cdpo": dpo("label_smoothing=0.1"),
    "robust_dpo": dpo("variant=robust, label_smoothing=0.1"),
    "hinge_dpo": dpo("variant=hinge"),
    "exo": dpo("variant=exo_pair, label_smoothing=0.001"),
    "discopop": dpo("variant=discopop"),
    "nca": dpo("variant=nca_pair"),
    "bco": dpo("variant=bco_pair"),
    "sppo": dpo("variant=sppo_hard"),
    "apo_zero": dpo("variant=apo_zero"),
    "apo_down": dpo("variant=apo_down"),
    "dpo_norm": dpo("variant=sigmoid_norm"),
    "aot": dpo("variant=aot"),
    "aot_unpaired": dpo("variant=aot_unpaired"),
    "wpo": dpo("weighting=wpo"),
    "iterative_rpo": dpo("nll_coefficient=1.0"),
    "mpo": dpo("nll_coefficient=1.0, variants=('sigmoid', 'bco_pair'), weights=(0.8, 0.2)"),
    "online_dpo": Row(
        loss="dpo",
        aggregation="sequence_mean",
        samples=2,
        lr=5e-7,
        anchored=True,
    ),
    "ipo": fixed("ipo", "preference", lr=5e-7, anchored=True),
    "simpo": fixed("simpo", "preference", lr=5e-7),
    "orpo": fixed("orpo", "preference", lr=5e-6),
    "cpo": fixed("cpo", "preference"),
    "kto": fixed("kto", "unpaired", lr=5e-7, anchored=True),
    "sft": fixed("sft", "messages", "token_mean", lr=1e-5),
    "dft": fixed("dft", "messages", "token_mean", lr=1e-5),
    "rm": fixed("bradley_terry(center=0.01)", "preference", lr=9e-6, head="value"),
    "rm_ranking": fixed("pairwise_ranking", "ranked", lr=9e-6, head="value"),
    "prm": fixed("process_bce", "stepwise", "token_mean", lr=9e-6, head="value"),
    "rft": Row(loss="sft", aggregation="token_mean", filter="best_of_n", samples=16),
}


def as_row(experiment: Experiment, like: Row) -> Row:
    """Returns what an experiment says, in the words of ROWS; what is no preset's is as in ``like``."""
    algorithm, settings, critic = experiment.algorithm, experiment.loop, experiment.critic
    kl = algorithm.kl
    return Row(
        advantage=_said(algorithm.advantage),
        loss=_said(algorithm.loss) or "",
        aggregation=_said(algorithm.aggregation) or "",
        kl=None
        if kl is None
        else f"{_said(kl.estimator)} {kl.placement} {kl.coefficient or _said(kl.controller)}",
        filter=" ".join(map(str, map(_said, algorithm.filter))) or None,
        correction=" ".join(map(str, map(_said, algorithm.correction))) or None,
        top_k=None if experiment.teacher is None else experiment.teacher.top_k,
        old_logprob=algorithm.old_logprob,
        samples=settings.samples_per_prompt,
        minibatches=settings.minibatches,
        epochs=settings.epochs,
        critic=None
        if critic is None
        else f"{_said(critic.loss)} at {critic.coefficient} of the policy's loss"
        if critic.shared
        else f"{_said(critic.loss)} at {critic.optimizer.lr} after {critic.warmup_steps} steps",
        lr=experiment.optimizer.lr,
        adds=like.adds,
        overrides=like.overrides,
        anchored=kl is None and experiment.reference is not None,
        head=experiment.model.head,
    )


def _said(component: Any) -> str | None:
    """Returns a component's name with the keys that differ from their defaults."""
    if component is None:
        return None
    differing = [
        f"{field.name}={getattr(component, field.name)}"
        for field in fields(component)
        if field.init
        and getattr(component, field.name) != (field.default if field.default is not MISSING else None)
    ]
    return name_of(component) + (f"({', '.join(differing)})" if differing else "")


def test_every_row_of_the_catalogue_has_a_preset() -> None:
    assert set(PRESETS) == set(ROWS)


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_equals_its_row_of_the_catalogue(preset: str, write: Write) -> None:
    row = ROWS[preset]
    experiment = load(write(preset, row.adds), ["loop.steps=100"])
    assert as_row(experiment, row) == row
    assert (experiment.optimizer.weight_decay, experiment.training.max_norm) == (0.0, 1.0)


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_begins_with_its_name_and_source(preset: str) -> None:
    comment = (ROOT / "experiments" / "algorithms" / f"{preset}.toml").read_text().partition("\n\n")[0]
    assert all(line.startswith("#") for line in comment.splitlines())
    assert "# Source:" in comment


@pytest.mark.parametrize("preset", PRESETS)
def test_preset_trains(preset: str, train: Train) -> None:
    trained = train(preset, ROWS[preset].adds, ROWS[preset].overrides)
    assert [step["step"] for step in trained.steps] == [1, 2, 3, 4, 5]
    assert all(math.isfinite(value) for step in trained.steps for value in step.values())
    unknown = {name for step in trained.steps for name in step} - DOCUMENTED
    assert {name for name in unknown if not name.startswith("time/")} == {"step"}
    # Best answers may tie in single steps, never in all.
    assert sum(step.get("update/skipped", 0) for step in trained.steps) < len(trained.steps)
    assert all(not torch.equal(value, trained.before[name]) for name, value in trained.after.items())
