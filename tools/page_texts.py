"""What the component pages say beside the sources: of each kind, and of the notation."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["INDEX", "KINDS", "MADE", "Kind"]

MADE = "<!-- Written by `make docs` from the sources of components/. Edit those, not this page. -->"


class Kind(NamedTuple):
    """What a page says of its kind before the components."""

    title: str
    table: str
    """Where it stands in an experiment file."""
    call: str
    """What is called, with what, and what comes back."""
    text: str


KINDS = {
    "advantage": Kind(
        "Advantage estimators",
        "[algorithm.advantage]",
        "estimator(batch) -> Advantages(advantage [N, L], returns [N, L] | None)",
        "Turn rewards into a number for each trained token, on the global batch and without gradient. "
        "What belongs to a row is copied to all its trained tokens.",
    ),
    "loss": Kind(
        "Losses",
        "[algorithm.loss]",
        "loss(policy, batch) -> TokenLoss(loss [B, L] or [B, 1], metrics)",
        "What is minimised, per token or per row and before any averaging: the update minimises "
        "`sum(loss_weight * loss)`, where loss_weight is the [aggregation](aggregation.md)'s. Each "
        "metric is reported as its mean over the trained tokens, under `loss/`.",
    ),
    "kl": Kind(
        "KL estimators",
        "[algorithm.kl]",
        "estimator(logprob, ref_logprob) -> [.., L]",
        "The distance of the policy from the reference, token by token. What its value and its gradient "
        "stand for depends on where it is placed: [docs/kl.md](../kl.md) has the table. The keys "
        "`placement`, `coefficient` or `controller`, and `importance_weight` stand in the same table.",
    ),
    "aggregation": Kind(
        "Aggregations",
        "[algorithm.aggregation]",
        "aggregation(loss_mask [N, L], group_id [N]) -> loss_weight [N, L]",
        "How token losses become one number: the weight of each token, computed over the whole optimizer "
        "step, so that every split into micro-batches and ranks sums to the same.",
    ),
    "correction": Kind(
        "Corrections",
        "[[algorithm.correction]]",
        "correction(batch) -> CorrectionResult(weight [N, L], keep [N, L], metrics)",
        "What is done about tokens that the sampler and the trainer judge differently, and which tokens "
        "are trained on. On the global batch, without gradient. Several chain: weights multiply, keep "
        "masks are and-ed. The weights scale the policy loss alone, neither KL nor entropy.",
    ),
    "filter": Kind(
        "Filters",
        "[[algorithm.filter]]",
        "filter(batch) -> keep [N]",
        "Which groups are trained on, decided before the advantage. A group must pass all of them; a "
        "step whose groups are all dropped samples anew, `[loop] max_resample_attempts` times.",
    ),
    "kl_controller": Kind(
        "Controllers",
        "[algorithm.kl.controller] and [algorithm.entropy]",
        "controller.coefficient; controller.update(kl, num_sequences, step) after each step",
        "How the coefficient of the KL term or of the entropy bonus moves. Their state is in every "
        "checkpoint.",
    ),
    "reward": Kind(
        "Rewards",
        "[[reward]]",
        "reward(batch) -> [n]",
        "What an answer is worth. A row's reward is the sum of all, each times its `weight`; a function "
        "that raises or is late costs its row the score `failure_score`, never the run. `weight`, `label`, "
        "`failure_score` and `timeout_seconds` are keys of every reward.",
    ),
    "sampler": Kind(
        "Samplers",
        "[sampler]",
        "settings.start(host) -> a live sampler",
        "Where answers come from. A sampler is a live resource rather than a formula: no golden case can "
        "hold it, tests/unit/samplers and tests/e2e start each one.",
    ),
    "source": Kind(
        "Sources",
        "[prompts] or [data]; [evaluation.prompts] or [evaluation.data]",
        "settings.open() -> a sequence of prompts, or of fixed rows",
        "Where prompts come from, or answers that stand already. A source is a resource rather than a "
        "formula; tests/unit/sources reads from each one.",
    ),
}

INDEX = f"""{MADE}

# Components

Everything an experiment file can name, from the sources. In the terminal: `titanrl components`,
`titanrl components loss ppo_clip`. [How to write one](../write-a-component.md).

{{table}}

## Notation

| symbol | meaning |
|---|---|
| i, t, g, j | row (one answer), label position, group (answers to one prompt), another row of the group |
| N, B, L, K, G | rows of the step, of a micro-batch, label positions, candidates, answers to a prompt |
| m, T_i, M | loss_mask; trained tokens of row i; trained tokens of the step |
| l, l_old, l_ref | log-prob of the policy, of the policy before the update, of the reference, nats |
| rho, d | exp(l - l_old), and the difference itself |
| A, R, V, r, s | advantage, returns, the critic's value, reward, the row's score |
| mean_i, mean_g, sd_g | mean over the trained tokens of a row; mean and standard deviation over a group |
| W(x) | whitened over all trained tokens of the batch: (x - mean) / sqrt(var + 1e-8), var with n - 1 |
| sg(x) | x without gradient |
| sig, ls | logistic function, and its logarithm |
| clip(x, a, b) | x held between a and b; its gradient is 0 outside |
| [condition] | 1 where it holds, else 0 |
| rows 2i, 2i + 1 | chosen and rejected answer of a pair |
| pc, pr, nc, nr | their summed log-probs, and their numbers of trained tokens |

A masked place is one whose loss_mask is false: prompts, tool answers, padding. A golden case is a table, a
batch and the numbers that must come out, computed in float64 by another program
([tests/golden](../../tests/golden/README.md)). A law is a property that holds for every registered component
of a kind, tried on random batches (tests/laws).
"""
