"""The vocabulary head against float64 log_softmax, values and gradients."""

from __future__ import annotations

import pytest
import torch

from titanrl.ops import logprob, row_kernels
from titanrl.ops.logprob import token_statistics

S, D, V, K = 600, 16, 50, 3


def reference(
    hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the same statistics by log_softmax over full logits."""
    log_pi = (hidden @ weight.T / temperature).log_softmax(-1)
    return log_pi.gather(-1, ids), -(log_pi.exp() * log_pi).sum(-1), log_pi.exp().square().sum(-1)


def inputs(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(S, D, generator=generator).requires_grad_()
    weight = torch.randn(V, D, generator=generator).requires_grad_()
    ids = torch.randint(0, V, (S, K), generator=generator)
    grad_logprob, grad_entropy = torch.randn(S, K, generator=generator), torch.randn(S, generator=generator)
    return hidden, weight, ids, grad_logprob, grad_entropy


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three chunks of tokens with blocks of rows, vocab tiles, gradients summed over two parts."""
    monkeypatch.setattr(logprob, "CHUNK_BYTES", 256 * V * 4)
    monkeypatch.setattr(row_kernels, "CACHED_NUMBERS", 40 * V)
    monkeypatch.setattr(logprob, "MAX_TOKENS", 400)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_head_equals_log_softmax_in_float64(temperature: float) -> None:
    hidden, weight, ids, *_ = inputs()
    actual = token_statistics(hidden, weight, ids, temperature=temperature)
    wanted = reference(hidden.double(), weight.double(), ids, temperature)
    for value, expected in zip(actual[:3], wanted, strict=True):
        torch.testing.assert_close(value.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("with_entropy", [True, False])
def test_head_gradient_equals_autograd_in_float64(temperature: float, with_entropy: bool) -> None:
    hidden, weight, ids, grad_logprob, grad_entropy = inputs(1)
    factor = 1.0 if with_entropy else 0.0
    actual = token_statistics(hidden, weight, ids, temperature=temperature)
    total = (actual.logprob * grad_logprob).sum()
    if with_entropy:
        total = total + (actual.entropy * grad_entropy).sum()
    total.backward()
    exact_hidden = hidden.detach().double().requires_grad_()
    exact_weight = weight.detach().double().requires_grad_()
    logprob, entropy, _ = reference(exact_hidden, exact_weight, ids, temperature)
    ((logprob * grad_logprob).sum() + factor * (entropy * grad_entropy).sum()).backward()
    # Sums of up to 600 float32 terms of size 10.
    torch.testing.assert_close(hidden.grad.double(), exact_hidden.grad, atol=5e-5, rtol=1e-5)
    torch.testing.assert_close(weight.grad.double(), exact_weight.grad, atol=1e-4, rtol=1e-5)


def test_head_gives_a_repeated_id_both_gradients() -> None:
    hidden, weight, ids, grad_logprob, _ = inputs(2)
    ids = ids[:, :1].expand(-1, 2)
    actual = token_statistics(hidden, weight, ids)
    (actual.logprob * grad_logprob[:, :2]).sum().backward()
    exact = hidden.detach().double().requires_grad_()
    logprob, *_ = reference(exact, weight.detach().double(), ids, 1.0)
    (logprob * grad_logprob[:, :2]).sum().backward()
    torch.testing.assert_close(hidden.grad.double(), exact.grad, atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_head_returns_topk_ids_and_logprobs(temperature: float) -> None:
    hidden, weight, ids, *_ = inputs(7)
    actual = token_statistics(hidden, weight, ids, temperature=temperature, top_k=5)
    log_pi = (hidden.double() @ weight.double().T / temperature).log_softmax(-1)
    wanted = log_pi.topk(5, dim=-1)
    assert torch.equal(actual.topk_ids, wanted.indices)
    torch.testing.assert_close(actual.topk_logprob.double(), wanted.values, atol=1e-5, rtol=1e-5)
    assert not actual.topk_logprob.requires_grad


def test_head_gradient_does_not_depend_on_topk() -> None:
    gradients = []
    for top_k in (0, 5):
        hidden, weight, ids, grad_logprob, _ = inputs(8)
        (token_statistics(hidden, weight, ids, top_k=top_k).logprob * grad_logprob).sum().backward()
        gradients.append((hidden.grad, weight.grad))
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


def test_head_survives_large_logits() -> None:
    hidden, weight, ids, *_ = inputs(3)
    actual = token_statistics(hidden * 1000, weight, ids)
    assert all(value.isfinite().all() for value in actual)
    actual.logprob.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


def test_head_holds_the_logits_of_one_chunk_only() -> None:
    recorded: list[int] = []

    def statistics(logits: torch.Tensor, temperature: float) -> row_kernels.RowStatistics:
        recorded.append(len(logits))
        return row_kernels.row_statistics(logits, temperature)

    hidden, weight, ids, *_ = inputs(4)
    token_statistics(hidden, weight, ids, kernels=row_kernels.Kernels(statistics, row_kernels.row_gradient))
    assert recorded == [256, 256, 88]


def test_head_in_bfloat16_keeps_float32_sums() -> None:
    hidden, weight, ids, *_ = inputs(5)
    actual = token_statistics(hidden.bfloat16(), weight.bfloat16(), ids)
    wanted, *_ = reference(hidden.bfloat16().double(), weight.bfloat16().double(), ids, 1.0)
    assert actual.logprob.dtype == torch.float32
    # Logits up to 16 are rounded to 8 bits of mantissa: steps of 1/16.
    assert (actual.logprob.double() - wanted).abs().max() < 0.1
    assert (actual.logprob.double() - wanted).abs().mean() < 0.01


def test_gradient_of_a_nearly_certain_token_survives_bfloat16() -> None:
    """p - 1 = -.000953 for p = .999047, which bfloat16 rounds to 0."""
    hidden = torch.ones(1, 1, dtype=torch.bfloat16)
    weight = torch.tensor([[6.9551], [0.0]], dtype=torch.bfloat16, requires_grad=True)
    token_statistics(hidden, weight, torch.zeros(1, 1, dtype=torch.int64)).logprob.sum().backward()
    p = float(torch.tensor([float(weight[0, 0]), 0.0], dtype=torch.float64).softmax(0)[0])
    assert weight.grad is not None
    assert float(weight.grad[0, 0]) == pytest.approx(1 - p, rel=5e-3)


def test_duplicate_id_gets_the_sum_of_its_gradients() -> None:
    hidden, weight, ids, grad_logprob, grad_entropy = inputs(7)
    ids[:, 2] = ids[:, 0]
    gradients = []
    for actual in (token_statistics(hidden, weight, ids), reference(hidden, weight, ids, 1.0)):
        hidden.grad = weight.grad = None
        ((actual[0] * grad_logprob).sum() + (actual[1] * grad_entropy).sum()).backward()
        gradients.append((hidden.grad, weight.grad))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-5)


@pytest.mark.slow
def test_compiled_head_equals_eager() -> None:
    from titanrl.engine.heads.token import compiled_kernels

    hidden, weight, ids, grad_logprob, grad_entropy = inputs(6)
    gradients = []
    for kernels in (row_kernels.EAGER, compiled_kernels("inductor")):
        hidden.grad = weight.grad = None
        actual = token_statistics(hidden, weight, ids, temperature=0.7, kernels=kernels)
        ((actual.logprob * grad_logprob).sum() + (actual.entropy * grad_entropy).sum()).backward()
        gradients.append((actual.logprob.detach(), hidden.grad, weight.grad))
    for eager, compiled in zip(*gradients, strict=True):
        torch.testing.assert_close(compiled, eager, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("top_k", [0, 3])
def test_float32_head_rounds_no_logit_of_bfloat16_inputs(top_k: int) -> None:
    hidden, weight, ids, grad_logprob, grad_entropy = inputs(5)
    hidden, weight = (each.detach().bfloat16().requires_grad_() for each in (hidden, weight))
    actual = token_statistics(hidden, weight, ids, temperature=0.7, top_k=top_k, dtype=torch.float32)
    ((actual.logprob * grad_logprob).sum() + (actual.entropy * grad_entropy).sum()).backward()
    exact = [each.detach().double().requires_grad_() for each in (hidden, weight)]
    logprob, entropy, squares = reference(exact[0], exact[1], ids, 0.7)
    ((logprob * grad_logprob).sum() + (entropy * grad_entropy).sum()).backward()
    for value, expected in zip(actual[:3], (logprob, entropy, squares), strict=True):
        torch.testing.assert_close(value.double(), expected, atol=1e-5, rtol=1e-5)
    for given, wanted in zip((hidden, weight), exact, strict=True):
        assert given.grad.dtype == torch.bfloat16
        # One rounding to bfloat16, 2^-8 of the value, of sums of up to 600 float32 terms of size 10.
        torch.testing.assert_close(given.grad.double(), wanted.grad, atol=1e-4, rtol=2**-8)
