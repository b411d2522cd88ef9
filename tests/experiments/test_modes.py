"""What a run computes when components ask for more: the sampler as the old policy, greedy answers."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments.conftest import PROMPTS, REWARDS, ROOT, TEACHER, Train, Write, data
from titanrl.engine import Engine


def test_bypass_mode_scores_nothing_and_reports_logprob_diff(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "score", lambda *_: pytest.fail("a scoring pass"))
    trained = train("dppo")
    # The torch sampler decodes with the trainer's weights: only rounding differs.
    assert all(0 <= step["sample/logprob_diff"] < 1e-4 for step in trained.steps)
    assert all(step["loss/approx_kl"] < 1e-6 for step in trained.steps)


def test_rows_without_advantage_may_be_skipped_with_the_same_gradient(train: Train) -> None:
    # Rewards of answers without a digit alone: in some groups all have it, in some steps every group.
    steps = {}
    for skip in ("false", "true"):
        overrides = [
            f"loop.skip_zero_advantage={skip}",
            "loop.steps=3",
            "loop.samples_per_prompt=2",
            "algorithm.aggregation.length=8",
        ]
        steps[skip] = train("dr_grpo", PROMPTS + REWARDS, overrides).steps
    for whole, fewer in zip(steps["false"], steps["true"], strict=True):
        assert whole["update/grad_norm"] == pytest.approx(fewer["update/grad_norm"], rel=1e-5)
    computed = {
        skip: sum(step["update/computed_tokens"] for step in metrics) for skip, metrics in steps.items()
    }
    assert 0 < computed["true"] < computed["false"]


def test_bypass_mode_with_several_optimizer_steps_has_no_logprob_diff(train: Train) -> None:
    trained = train("dppo", overrides=["loop.epochs=2", "loop.steps=1", "optimizer.lr=1e-2"])
    assert "sample/logprob_diff" not in trained.steps[0]
    assert trained.steps[0]["loss/approx_kl"] > 1e-4


def test_greedy_responses_are_scored_for_components_that_read_them(train: Train) -> None:
    one = ["loop.steps=1"]
    assert "reward/greedy_mean" in train("remax", overrides=one).steps[0]
    assert "reward/greedy_mean" not in train("rloo", overrides=one).steps[0]


def test_entropy_of_the_old_policy_is_scored_where_it_selects_tokens(train: Train) -> None:
    trained = train("entropy_80_20", overrides=["loop.steps=2"])
    assert all(step["correction/dropped_fraction"] == pytest.approx(0.8, abs=0.02) for step in trained.steps)


def test_optimal_token_baseline_trains_on_squared_probabilities(train: Train) -> None:
    overrides = ["loop.steps=2", "algorithm.advantage.name=optimal_token_baseline"]
    trained = train("opo", overrides=overrides)
    assert trained.session.scored_keys == {"old_logprob", "sum_pi_squared"}
    assert all(step["advantage/abs_mean"] > 0 for step in trained.steps)
    assert all(step["update/skipped"] == 0 for step in trained.steps)


LEARNING = ["loop.steps=12", "optimizer.lr=1e-2", "sampler.max_response_tokens=12"]


def test_on_policy_distillation_lowers_the_reverse_kl_to_the_teacher(train: Train) -> None:
    trained = train("on_policy_distill", PROMPTS + TEACHER, LEARNING)
    # teacher_kl's advantage is log teacher - log policy on the policy's own tokens: minus the reverse KL.
    reverse_kl = [-step["advantage/mean"] for step in trained.steps]
    assert reverse_kl[0] > 0.5
    assert reverse_kl[-1] < 0.75 * reverse_kl[0]


def test_online_pairs_raise_the_reward_that_ranks_them(train: Train) -> None:
    steps = train("online_dpo", overrides=[*LEARNING, "loop.prompts_per_step=16"]).steps
    assert all(0 < step["filter/pairs"] <= 16 for step in steps)
    # The reference is the initial policy: ln 2 whatever was sampled, so long as each pair is one prompt's.
    assert steps[0]["loss/total"] == pytest.approx(math.log(2), abs=1e-5)
    first, last = ([step["reward/mean"] for step in part] for part in (steps[:3], steps[-3:]))
    assert sum(last) > sum(first) + 0.3


def test_distillation_on_candidates_lowers_the_divergence_from_the_teacher(train: Train) -> None:
    trained = train("gkd", PROMPTS + TEACHER, LEARNING)
    divergence = [step["loss/total"] for step in trained.steps]
    assert divergence[-1] < 0.6 * divergence[0]


def test_offline_distillation_lowers_the_divergence_from_the_teacher(train: Train) -> None:
    path = ROOT / "tests" / "experiments" / "data" / "unpaired.jsonl"
    held_out = f"{{name='dataset', format='prompt_completion', path='{path}'}}"
    evaluation = f"evaluation={{interval=0, num_prompts=4, data={held_out}}}"
    overrides = ["loop.steps=12", "optimizer.lr=1e-2", evaluation]
    first, *trained = train("distill", data("messages") + TEACHER, overrides).steps
    assert trained[-1]["loss/total"] < 0.6 * trained[0]["loss/total"]
    assert trained[-1]["eval/loss"] < 0.7 * first["eval/loss"]


def test_conversation_in_one_pass_has_the_loss_of_its_separate_turns(train: Train, tmp_path: Path) -> None:
    """A row of several turns, packed with others, against a row for each turn in a micro-batch of its own."""
    turns = [("hi", "hello there"), ("1 + 1?", "2"), ("and 2 + 2?", "that is 4")]
    conversations = [
        [
            {"role": role, "content": text}
            for turn in turns[:count]
            for role, text in zip(("user", "assistant"), turn, strict=True)
        ]
        for count in (3, 1, 2)
    ]
    single = [
        {"prompt": messages[:place], "completion": messages[place : place + 1]}
        for messages in conversations
        for place in range(1, len(messages), 2)
    ]
    losses = []
    for format, records, room in (
        ("messages", [{"messages": each} for each in conversations], 4096),
        ("prompt_completion", single, 1),
    ):
        path = tmp_path / f"{format}.jsonl"
        path.write_text("\n".join(map(json.dumps, records)))
        source = f"{{name='dataset', format='{format}', path='{path}'}}"
        overrides = [f"evaluation={{interval=0, data={source}}}", "loop.steps=1"]
        overrides.append(f"training.max_tokens_per_microbatch={room}")
        losses.append(train("sft", data("messages"), overrides).steps[0]["eval/loss"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_offline_training_evaluates_held_out_prompts(train: Train) -> None:
    adds = data("messages") + PROMPTS.replace("[prompts]", "[evaluation.prompts]") + REWARDS
    overrides = ["loop.steps=2", "evaluation.interval=1", "evaluation.num_prompts=5"]
    trained = train("sft", adds, overrides)
    assert all(step["eval/num_prompts"] == 5 for step in trained.steps)
    assert all(0 < step["eval/response_tokens_mean"] <= 8 for step in trained.steps)
    assert all("eval/loss" not in step for step in trained.steps)
    alone = train("sft", data("messages"), ["loop.steps=2"])
    assert [step["loss/total"] for step in alone.steps] == [step["loss/total"] for step in trained.steps[1:]]
    assert trained.session.live_sampler.version == 2


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(("preset", "adds"), [("gkd", TEACHER), ("remax", REWARDS)], ids=["gkd", "remax"])
def test_two_processes_give_the_run_of_one(
    preset: str, adds: str, train: Train, write: Write, folder: Path
) -> None:
    overrides = ["loop.steps=2", "optimizer.lr=1e-2"]
    one = train(preset, PROMPTS + adds, overrides).steps
    options = [f"--set={each}" for each in (*overrides, "run.name=on_two_ranks")]
    command = [sys.executable, "-m", "titanrl", "train", str(write(preset, PROMPTS + adds)), "--nproc", "2"]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    (run,) = (folder / "runs").glob("on_two_ranks*")
    two = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for alone, shared in zip(one, two, strict=True):
        for key in {"loss/total", "reward/greedy_mean", "update/grad_norm", "loss/entropy"} & alone.keys():
            assert shared[key] == pytest.approx(alone[key], rel=1e-4, abs=1e-5), key
    run.rename(run.with_name(f"{preset}_of_two"))
