"""Log-probs of a row do not depend on padding, on neighbouring rows or on shared prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from titanrl.data.collate import collate_rollouts
from titanrl.engine import Engine
from titanrl.ops.padding import trim
from titanrl.protocols import Completion, RolloutRequest

PROMPT, ANSWER, LONG = [5, 6, 7], [8, 9], [11, 12, 13, 14, 15, 16, 17, 18]


def rows_of(*rows: tuple[list[int], list[int], int]) -> TensorDict:
    """Return the batch of (prompt, response, group)."""
    prompts = [RolloutRequest(prompt, group, index) for index, (prompt, _, group) in enumerate(rows)]
    answers = [Completion(answer, [0.0] * len(answer), 0) for _, answer, _ in rows]
    return collate_rollouts(prompts, answers, decode=str, version=0)


def padded(batch: TensorDict) -> TensorDict:
    """Return the batch with five more columns and tokens other than 0 at all unspecified positions."""
    wide = trim(batch, batch["labels"].shape[1] + 5)
    last = wide["loss_mask"].long().cumsum(1).argmax(1, keepdim=True)
    after = torch.arange(wide["labels"].shape[1]) > last
    return wide.update({key: torch.where(after, 33, wide[key]) for key in ("input_ids", "labels")})


ALONE = (PROMPT, ANSWER, 0)
LAYOUTS = {
    "padding after the end": padded(rows_of(ALONE)),
    "beside a longer row": padded(rows_of(ALONE, (LONG[:4], LONG[4:], 1))),
    "after a longer row": rows_of((LONG[:4], LONG[4:], 1), ALONE),
    "beside a response to the same prompt": padded(rows_of(ALONE, (PROMPT, LONG, 0))),
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("max_tokens", [1, 120])
def test_logprobs_do_not_depend_on_padding_or_neighbouring_rows(
    make_engine: Callable[..., Engine], model_folder: Path, layout: str, max_tokens: int
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    with torch.no_grad():
        log_pi = model(torch.tensor([PROMPT + ANSWER])).logits.log_softmax(-1)[0]
    expected = torch.stack([log_pi[2, ANSWER[0]], log_pi[3, ANSWER[1]]])
    engine = make_engine(training={"max_tokens_per_microbatch": max_tokens})
    batch = LAYOUTS[layout]
    actual = engine.score(batch)["logprob"]
    (row,) = (i for i, length in enumerate(batch["loss_mask"].sum(1)) if length == len(ANSWER))
    torch.testing.assert_close(actual[row][batch["loss_mask"][row]], expected, atol=1e-5, rtol=0)
    assert not actual[~batch["loss_mask"]].any()
