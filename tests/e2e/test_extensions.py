"""One plug-in file that adds batch keys, their writers and readers, and a per-token reward to a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import titanrl
from tests.unit.config.conftest import registry_as_before
from titanrl.models import tiny
from titanrl.protocols.batch import KEYS
from titanrl.training import online

__all__ = ["registry_as_before"]

PLUGIN = '''
from dataclasses import dataclass
from typing import ClassVar

import torch

from titanrl import Advantages, Prompt, register
from titanrl.protocols import Completion, FinishReason, Sampler, register_key

register_key("difficulty", shape="[N]", dtype="float32", writer="sample", meaning="number of summands")
register_key("token_turn", shape="[N, L]", dtype="int64", writer="sample", meaning="turn of a token, from 1")
register_key("num_digits", shape="[N]", dtype="float32", writer="score", meaning="digits of the response")


@register("source", "lab_sums")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabSums:
    """Sums of 2 to 5 ones."""

    out_keys: ClassVar[tuple[str, ...]] = ("difficulty",)

    def open(self):
        counts = range(2, 6)
        return [Prompt("+".join("1" * n) + "=", answer=str(n), columns={"difficulty": n}) for n in counts]


@register("sampler", "lab_turns")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabTurns:
    """Samples as many digits as the sample's number in its group plus one, in turns of two tokens."""

    temperature: float = 1.0
    max_response_tokens: int = 8
    out_keys: ClassVar[tuple[str, ...]] = ("token_turn",)

    def start(self, context):
        return LiveLabTurns(context)


class LiveLabTurns(Sampler):
    def __init__(self, context):
        self.context = context

    def sample(self, requests, *, step, seed, temperature=None, greedy=False, max_tokens=None):
        return [self.complete(request.sample_index + 1) for request in requests]

    def complete(self, count):
        ids = [*self.context.tokenizer.encode("7" * count), self.context.eos_ids[0]]
        turns = [1 + i // 2 for i in range(len(ids))]
        return Completion(ids, [-4.4] * len(ids), FinishReason.STOP, extras={"token_turn": turns})


@register("reward", "lab_digits")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabDigits:
    """A reward of 1 per token of the first turn; it also counts the digits of the response."""

    in_keys: ClassVar[tuple] = (("text", "response"), "token_turn")
    out_keys: ClassVar[tuple[str, ...]] = ("num_digits",)
    per_token: ClassVar[bool] = True

    def __call__(self, batch):
        digits = [sum(map(str.isdigit, text)) for text in batch["text", "response"]]
        return {"reward": (batch["token_turn"] == 1).float(), "num_digits": torch.tensor(digits)}


@register("filter", "lab_longer")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabLonger:
    """Keeps rows of two digits or more."""

    in_keys: ClassVar[tuple[str, ...]] = ("num_digits",)
    keeps_groups: ClassVar[bool] = False

    def __call__(self, batch):
        return batch["num_digits"] >= 2


@register("advantage", "lab_per_turn")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabPerTurn:
    """The token's reward per summand, plus the number of its turn."""

    in_keys: ClassVar[tuple[str, ...]] = ("token_reward", "difficulty", "token_turn")
    is_group_relative: ClassVar[bool] = False

    def __call__(self, batch):
        value = batch["token_reward"] / batch["difficulty"][:, None] + batch["token_turn"]
        return Advantages(torch.where(batch["loss_mask"], value, 0))
'''

EXPERIMENT = """
imports = ["extension_components.py"]
[model]
path = "tiny"
[prompts]
name = "lab_sums"
[sampler]
name = "lab_turns"
[[reward]]
name = "lab_digits"
weight = 3.0
[[algorithm.filter]]
name = "lab_longer"
[algorithm.advantage]
name = "lab_per_turn"
[algorithm.loss]
name = "reinforce"
[algorithm.aggregation]
name = "token_mean"
[loop]
steps = 2
prompts_per_step = 4
samples_per_prompt = 3
[training]
seq_len = 64
mixed_precision_param = "float32"
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry_as_before: None) -> Iterator[Path]:
    """Writes the plug-in and its experiment; forgets the plug-in's batch keys afterwards."""
    (tmp_path / "extension_components.py").write_text(PLUGIN)
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = dict(KEYS)
    yield tmp_path
    KEYS.clear()
    KEYS.update(known)
    sys.modules.pop("extension_components", None)


@pytest.mark.slow
def test_plugin_keys_and_per_token_rewards_reach_the_update(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.create(lab / "tiny")
    trained: list[Any] = []

    def optimize(session: Any, batch: Any, step: int, *, on_policy: bool, do: Any = online.optimize) -> Any:
        trained.append(batch)
        return do(session, batch, step, on_policy=on_policy)

    monkeypatch.setattr(online, "optimize", optimize)
    titanrl.train(titanrl.load("experiment.toml"))
    assert len(trained) == 2
    for batch in trained:
        # Of 1, 2 and 3 digits, the filter keeps 2 and 3: with the end token 3 and 4 tokens, the first two of
        # them in turn 1, whose reward is 3 * 1 each.
        assert batch["num_digits"].tolist() == [2.0, 3.0] * 4
        assert batch["reward"].tolist() == [6.0] * 8
        assert sorted(set(batch["difficulty"].tolist())) == [2.0, 3.0, 4.0, 5.0]
        for row in batch:
            mask, turn = row["loss_mask"], [1, 1, 2, 2][: int(row["num_digits"]) + 1]
            assert row["token_turn"][mask].tolist() == turn
            expected = [(3.0 if each == 1 else 0.0) / float(row["difficulty"]) + each for each in turn]
            torch.testing.assert_close(row["advantage"][mask], torch.tensor(expected))


EDITS = {
    "a written key that is not registered": (
        'register_key("num_digits",',
        'register_key("num_digit",',
        (
            "writes 'num_digits', which is no key of the batch; did you mean 'num_digit'? "
            "call titanrl.protocols.register_key."
        ),
    ),
    "a read key that is not registered": (
        '("num_digits",)\n    keeps',
        '("num_digit",)\n    keeps',
        "filter 'lab_longer' reads 'num_digit', which no stage writes; did you mean 'num_digits'?",
    ),
    "a read key that no component writes": (
        'out_keys: ClassVar[tuple[str, ...]] = ("difficulty",)',
        "",
        (
            "advantage 'lab_per_turn' reads 'difficulty', which no stage writes; add a source, sampler or "
            "reward that has it in out_keys, or choose another component."
        ),
    ),
    "a misspelled declaration": (
        "per_token:",
        "per_tokens:",
        "reward 'lab_digits': 'per_tokens' is no declaration of a reward; did you mean 'per_token'?",
    ),
    "a text that an advantage reads": (
        '("token_reward", "difficulty", "token_turn")',
        '("token_reward", "difficulty", "token_turn", ("text", "response"))',
        "[algorithm.advantage] advantage 'lab_per_turn' reads 'text.response', which only rewards can read",
    ),
    "a registered text that a filter reads": (
        'register_key("num_digits", shape="[N]", dtype="float32", writer="score"',
        'register_key("num_digits", shape="[N]", dtype="text", writer="sample"',
        "filter 'lab_longer' reads 'num_digits', which only rewards can read",
    ),
    "a key registered twice with other facts": (
        'register_key("token_turn",',
        'register_key("reward",',
        "batch key 'reward' is already registered as [N] float32, written by stage 'score'",
    ),
    "an unknown shape": (
        'shape="[N, L]"',
        'shape="[N,L]"',
        "batch key 'token_turn': shape must be one of [N], [N, L], [N, L, K], got '[N,L]'; did you mean",
    ),
}


@pytest.mark.parametrize("mistake", EDITS)
def test_mistakes_of_a_plugin_are_refused_with_the_remedy(lab: Path, mistake: str) -> None:
    before, after, message = EDITS[mistake]
    assert before in PLUGIN
    (lab / "extension_components.py").write_text(PLUGIN.replace(before, after))
    with pytest.raises(titanrl.ConfigError) as caught:
        titanrl.load("experiment.toml")
    assert message in str(caught.value)
