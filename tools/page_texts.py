"""Texts of the component pages that are not in the sources: each kind, and the notation."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["GENERATED", "INDEX", "KINDS", "Kind"]

GENERATED = "<!-- Written by `make docs` from the sources of components/. Edit those, not this page. -->"


class Kind(NamedTuple):
    """Introduction of a kind on its page."""

    title: str
    table: str
    """Its tables in an experiment file."""
    call: str
    """Signature of the call."""
    text: str


KINDS = {
    "advantage": Kind(
        "Advantage estimators",
        "[algorithm.advantage]",
        "estimator(batch) -> Advantages(advantage [N, L], returns [N, L] | None)",
        "An estimator turns rewards into an advantage per response token, on the global batch and without "
        "gradient. A value of a row is copied to all its response tokens.",
    ),
    "loss": Kind(
        "Losses",
        "[algorithm.loss]",
        "loss(policy, batch) -> TokenLoss(loss [B, L] or [B, 1], metrics)",
        "A loss per token or per row, before any averaging: the update minimises `sum(loss_weight * loss)`, "
        "where the [aggregation](aggregation.md) computes loss_weight. Each metric is reported under "
        "`loss/` as its mean over the loss tokens.",
    ),
    "kl": Kind(
        "KL estimators",
        "[algorithm.kl]",
        "estimator(logprob, ref_logprob) -> [.., L]",
        "The KL divergence of the policy from the reference policy, estimated per token. The meaning of its "
        "value and gradient depends on its placement: [docs/kl.md](../kl.md) has the table. The keys "
        "`placement`, `coefficient` or `controller`, and `importance_weight` belong to the same table.",
    ),
    "aggregation": Kind(
        "Aggregations",
        "[algorithm.aggregation]",
        "aggregation(loss_mask [N, L], group_id [N]) -> loss_weight [N, L]",
        "An aggregation reduces token losses to one number by a weight per token. The weights are computed "
        "over the whole optimizer step, so that every split into micro-batches and ranks gives the same "
        "sum.",
    ),
    "correction": Kind(
        "Corrections",
        "[[algorithm.correction]]",
        "correction(batch) -> CorrectionResult(weight [N, L], keep [N, L], metrics)",
        "A correction weights or drops tokens for which sampler and trainer disagree, on the global batch "
        "and without gradient. Several corrections combine: weights are multiplied, keep masks are and-ed. "
        "The weights scale the policy loss only, neither the KL term nor the entropy bonus.",
    ),
    "filter": Kind(
        "Filters",
        "[[algorithm.filter]]",
        "filter(batch) -> keep [N]",
        "A filter selects the groups to train on, before advantages are computed. A group must pass all "
        "filters. If all groups of a step are dropped, or fewer than `prompts_per_step` remain with `[loop] "
        "dynamic_sampling`, the step samples further prompts, up to `max_resample_attempts` times.",
    ),
    "kl_controller": Kind(
        "Controllers",
        "[algorithm.kl.controller] and [algorithm.entropy]",
        "controller.coefficient; controller.update(kl, num_sequences, step) after each step",
        "A controller adapts the coefficient of the KL term or of the entropy bonus. Its state is part of "
        "every checkpoint.",
    ),
    "reward": Kind(
        "Rewards",
        "[[reward]]",
        "reward(batch) -> [n]",
        "A reward scores a response. The reward of a row is the weighted sum of all rewards. If a reward "
        "raises an exception or times out, its row gets `failure_score` and the run continues. `weight`, "
        "`label`, `failure_score` and `timeout_seconds` are keys of every reward.",
    ),
    "sampler": Kind(
        "Samplers",
        "[sampler]",
        "settings.start(context) -> a live sampler",
        "A sampler generates responses. It is a live resource rather than a formula, so it has no golden "
        "cases; tests/unit/samplers and tests/e2e start each one.",
    ),
    "environment": Kind(
        "Environments",
        "[environment]",
        "settings.start(context) -> a live environment; await environment.run(row, ask) -> Trajectory",
        "An environment answers a prompt over several turns: it asks the policy, reacts, and gives a reward. "
        "`max_turns`, `timeout_seconds` and `concurrency` are keys of every environment. See "
        "[Write an environment](../write-an-environment.md).",
    ),
    "tool": Kind(
        "Tools",
        "[[environment.tool]]",
        "settings.start() -> a live tool; tool.open(row) -> its functions in one rollout",
        "A tool is one or more functions that the policy may call in the environment "
        "[`tools`](environment.md#tools). `timeout_seconds`, `max_result_chars` and `concurrency` are keys "
        "of every tool. [Tools](../tools.md) describes calls, limits and outcomes.",
    ),
    "source": Kind(
        "Sources",
        "[prompts] or [data]; [evaluation.prompts] or [evaluation.data]",
        "settings.open() -> a sequence of prompts or of examples",
        "A source provides prompts or dataset examples. It is a resource rather than a formula; "
        "tests/unit/sources reads from each one.",
    ),
}

INDEX = f"""{GENERATED}

# Components

All components that an experiment file can name, generated from the sources. `titanrl components` and
`titanrl components loss ppo_clip` print the same in the terminal. See also
[Write a component](../write-a-component.md).

{{table}}

## Notation

| symbol | meaning |
|---|---|
| i, t, g, j | row (one response), label position, group (responses to one prompt), another row of the group |
| N, B, L, K, G | rows of the step, rows of a micro-batch, label positions, candidates, responses per prompt |
| m, T_i, M | loss_mask; loss tokens of row i; loss tokens of the step |
| l, l_old, l_ref | log-prob of the policy, of the policy before the update, of the reference policy, nats |
| rho, d | exp(l - l_old), and l - l_old |
| A, R, V, r, s | advantage, returns, the critic's value, reward, the score of a row |
| mean_i, mean_g, sd_g | mean over the loss tokens of a row; mean and standard deviation over a group |
| W(x) | x whitened over all loss tokens of the batch: (x - mean) / sqrt(var + 1e-8), var with n - 1 |
| sg(x) | x without gradient |
| sig, ls | logistic function and its logarithm |
| clip(x, a, b) | x clipped to [a, b]; its gradient is 0 outside |
| [condition] | 1 if the condition holds, else 0 |
| rows 2i, 2i + 1 | chosen and rejected response of a pair |
| pc, pr, nc, nr | their summed log-probs, and their numbers of loss tokens |

A masked position is one whose loss_mask is false: prompts, tool outputs, padding. A golden case is a table, a
batch and the expected numbers, computed in float64 by an independent implementation
([tests/golden](../../tests/golden/README.md)). A law is a property test over all registered components of a
kind on random batches (tests/laws).
"""
