"""Losses of reward models and preference optimization: Bradley-Terry, DPO and its variants."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import titanrl
from titanrl import PolicyOutputs
from titanrl.ops.sequence import at_last_loss_token, sequence_mean

LN2 = math.log(2)


def mask_of(*lengths: int, width: int | None = None) -> torch.Tensor:
    """Right-padded rows with the given numbers of response tokens."""
    return torch.arange(width or max(lengths))[None] < torch.tensor(lengths)[:, None]


# ------------------------------------------------------------------ reward models


@pytest.mark.parametrize(
    ("mask", "position"),
    [([1, 1, 1, 1, 1, 0], 4), ([0, 0, 1, 1, 1], 4), ([1, 1, 1], 2), ([1, 1, 0, 0, 1, 0], 4)],
)
def test_score_is_read_at_the_last_response_token(mask: list[int], position: int) -> None:
    """Reported as transformers #35352: the first padding id is not the end if it equals EOS."""
    value = torch.arange(len(mask))[None].float()
    assert at_last_loss_token(value, torch.tensor([mask]).bool()).item() == position


def test_bradley_terry_of_identical_responses_is_ln_2_with_zero_gradient() -> None:
    value = torch.tensor([[0.1, 0.2, 0.3]] * 2, requires_grad=True)
    batch = {"loss_mask": torch.ones(2, 3, dtype=torch.bool)}
    policy = PolicyOutputs(logprob=torch.zeros(2, 3), value=value)
    result = titanrl.build("loss", {"name": "bradley_terry"})(policy, batch)
    (gradient,) = torch.autograd.grad(result.loss.sum(), value)
    assert result.loss.flatten().tolist() == pytest.approx([LN2, LN2])
    assert gradient.sum() == 0
    assert gradient[:, :2].abs().sum() == 0


def test_bradley_terry_is_finite_for_a_large_negative_margin() -> None:
    value = torch.tensor([[-50.0], [50.0]], requires_grad=True)
    batch = {"loss_mask": torch.ones(2, 1, dtype=torch.bool)}
    policy = PolicyOutputs(logprob=torch.zeros(2, 1), value=value)
    result = titanrl.build("loss", {"name": "bradley_terry"})(policy, batch)
    assert result.loss.flatten().tolist() == [100.0, 100.0]


@pytest.mark.parametrize("name", titanrl.names("reward"))
def test_reward_refuses_an_unsupported_normalize_option(name: str) -> None:
    with pytest.raises(titanrl.ConfigError, match="normalize"):
        titanrl.build("reward", {"name": name, "normalize": True})


# --------------------------------------------------------------- preference losses


def preference(logprob: torch.Tensor, ref_logprob: torch.Tensor, mask: torch.Tensor, **table: Any) -> Any:
    loss = titanrl.build("loss", {"name": "dpo"} | table)
    return loss(PolicyOutputs(logprob=logprob), {"loss_mask": mask, "ref_logprob": ref_logprob})


def test_dpo_does_not_depend_on_the_padding_side() -> None:
    """A prompt of 2 tokens, 3 chosen and 1 rejected; prompt and padding positions hold garbage."""
    answers = ([-1.0, -2.0, -0.5], [-0.7])
    losses = []
    for left in (False, True):
        logprob, mask = torch.full((2, 5), 1e9), torch.zeros(2, 5, dtype=torch.bool)
        for row, answer in enumerate(answers):
            start = 5 - len(answer) if left else 2
            logprob[row, start : start + len(answer)] = torch.tensor(answer)
            mask[row, start : start + len(answer)] = True
        losses.append(preference(logprob, torch.where(mask, logprob - 0.3, math.nan), mask).loss)
    assert torch.equal(losses[0], losses[1])
    assert losses[0][0].item() == pytest.approx(-math.log(1 / (1 + math.exp(-0.1 * (0.9 - 0.3)))))


@pytest.mark.parametrize("variant", ["sigmoid", "sigmoid_norm", "aot", "aot_unpaired"])
def test_dpo_loss_of_an_untrained_policy_is_ln_2(variant: str) -> None:
    """Reported as open-instruct #1900: padding counted as part of a rejected response."""
    logprob = -torch.rand(6, 5, generator=torch.Generator().manual_seed(0))
    mask = mask_of(3, 5, 4, 0, 1, 2)
    result = preference(logprob, logprob, mask, variant=variant)
    assert result.loss.flatten().tolist() == pytest.approx([LN2, LN2, 0, 0, LN2, LN2])
    assert not result.metrics["accuracy"].any()
    assert not result.metrics["margin"].any()


def test_dpo_rewards_are_relative_to_the_reference() -> None:
    logprob, ref_logprob = torch.tensor([[-10.0], [-14.0]]), torch.tensor([[-11.0], [-12.0]])
    result = preference(logprob, ref_logprob, torch.ones(2, 1, dtype=torch.bool))
    assert result.loss[0].item() == pytest.approx(0.554355, abs=1e-6)
    assert result.metrics["chosen_reward"][0].item() == pytest.approx(0.1)
    assert result.metrics["rejected_reward"][0].item() == pytest.approx(-0.2)


@pytest.mark.parametrize("name", ["cpo", "orpo"])
def test_preference_metric_excludes_the_nll_term(name: str) -> None:
    logprob = torch.tensor([[-0.5, -0.5], [-1.0, -1.0]])
    batch = {"loss_mask": torch.ones(2, 2, dtype=torch.bool)}
    result = titanrl.build("loss", {"name": name})(PolicyOutputs(logprob=logprob), batch)
    # cpo: h = .1 (-1 + 2); orpo: the log odds ratio of the means.
    logit = 0.1 if name == "cpo" else 0.974077
    expected = math.log1p(math.exp(-logit))
    assert result.metrics["preference"].flatten().tolist() == pytest.approx([expected] * 2, abs=1e-6)


def test_sequence_mean_divides_by_the_rows_own_length() -> None:
    logprob = torch.tensor([[-1.0, -2.0, -3.0, 9.0], [-1.0, -1.0, 9.0, 9.0]])
    assert sequence_mean(logprob, mask_of(3, 2, width=4)).flatten().tolist() == [-2.0, -1.0]


def test_dpo_refuses_an_odd_number_of_rows() -> None:
    with pytest.raises(ValueError, match="even number of rows, got 3"):
        preference(torch.zeros(3, 2), torch.zeros(3, 2), torch.ones(3, 2, dtype=torch.bool))


@pytest.mark.parametrize(
    ("table", "word"),
    [
        ({"variant": "nca_pair", "label_smoothing": 0.1}, "label_smoothing"),
        ({"variant": "aot", "divergence": "js"}, "divergence"),
        ({"alpha": 0.3}, "alpha"),
        ({"tau": 0.1}, "tau"),
        ({"ld_alpha": 1.5}, "ld_alpha"),
    ],
)
def test_dpo_refuses_options_that_would_be_ignored(table: dict[str, Any], word: str) -> None:
    with pytest.raises(titanrl.ConfigError, match=word):
        titanrl.build("loss", {"name": "dpo"} | table)


def test_aot_pairs_the_sorted_gaps_by_hand() -> None:
    """x = pc - pr = [3, 1], y = rc - rr = [5, 2]: 1 meets 2 and 3 meets 5; pair 1 holds the smaller x."""
    logprob = torch.tensor([[0.0], [-3.0], [0.0], [-1.0]], requires_grad=True)
    ref_logprob = torch.tensor([[0.0], [-5.0], [0.0], [-2.0]])
    result = preference(logprob, ref_logprob, torch.ones(4, 1, dtype=torch.bool), variant="aot", beta=1.0)
    expected = [math.log1p(math.exp(2.0))] * 2 + [math.log1p(math.exp(1.0))] * 2
    assert result.loss.flatten().tolist() == pytest.approx(expected)


def test_aot_unpaired_routes_the_gradient_to_the_pair_of_that_rank() -> None:
    """c = [2, 1], r = [0, 3]: c of pair 1 meets r of pair 0, and c of pair 0 meets r of pair 1."""
    logprob = torch.tensor([[2.0], [0.0], [1.0], [3.0]], requires_grad=True)
    mask = torch.ones(4, 1, dtype=torch.bool)
    result = preference(logprob, torch.zeros(4, 1), mask, variant="aot_unpaired", beta=1.0)
    (gradient,) = torch.autograd.grad(result.loss[2], logprob)
    slope = -1 / (1 + math.exp(1.0))
    assert gradient.flatten().tolist() == pytest.approx([0, -slope, slope, 0])


def test_dpo_does_not_modify_the_batch() -> None:
    logprob, mask = torch.tensor([[-1.0, math.nan], [-2.0, -1.0]]), mask_of(1, 2)
    ref_logprob = torch.tensor([[-1.5, math.nan], [-2.0, -1.5]])
    kept = ref_logprob.clone()
    first, second = (preference(logprob, ref_logprob, mask).loss for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(ref_logprob.nan_to_num(), kept.nan_to_num())
