"""A language model's ratings as a reward, against a small server."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import titanrl
from tests.unit.rewards.servers import answering
from titanrl.components.rewards.llm_judge.cache import judgement_cache
from titanrl.components.rewards.rating import parse_choice
from titanrl.errors import TrainingError


@pytest.fixture(autouse=True)
def empty_cache() -> None:
    """Forget judgements: servers of other tests may have had the same address."""
    judgement_cache.cache_clear()


def batch(*responses: str) -> TensorDict:
    text = {
        "prompt": ["1 + 1?"] * len(responses),
        "conversation": ["[system]\nbe brief\n\n[user]\n1 + 1?"] * len(responses),
        "response": list(responses),
        "answer": ["2"] * len(responses),
    }
    return TensorDict({"text": text}, batch_size=[len(responses)])


def judge(url: str, **keys: Any) -> Any:
    return titanrl.build("reward", {"name": "llm_judge", "endpoint": f"{url}/v1/", "model": "big", **keys})


def completion(text: str | None) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


def test_rating_of_each_reply_is_mapped_to_the_unit_interval_in_order(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def answer(path: str, sent: Any) -> tuple[int, Any]:
        seen.append(sent | {"path": path})
        said = sent["messages"][0]["content"]
        time.sleep(0.05 if "slow" in said else 0.0)
        return 200, completion(
            {"slow": "I give it 5", "best": "1 or rather 5:\n**9**", "bad": "1"}[said.split()[2]]
        )

    (tmp_path / "key").write_text("secret\n")
    with answering(answer) as url:
        keys = {"template": "{answer} of {response} is", "key_file": str(tmp_path / "key")}
        assert judge(url, scale=[1, 9], **keys).scores(batch("slow {answer}", "best", "bad")) == [
            0.5,
            1.0,
            0.0,
        ]
    assert {each["path"] for each in seen} == {"/v1/chat/completions"}
    assert {each["headers"]["Authorization"] for each in seen} == {"Bearer secret"}
    assert {(each["model"], each["temperature"]) for each in seen} == {("big", 0)}
    assert "2 of slow {answer} is" in {each["messages"][0]["content"] for each in seen}


@pytest.mark.slow
def test_reply_without_a_rating_and_a_timeout_fail_alone() -> None:
    late = threading.Event()

    def answer(path: str, sent: Any) -> tuple[int, Any]:
        said = sent["messages"][0]["content"]
        if "late" in said:
            late.wait(3)
        replies = {"none": completion("no idea"), "empty": completion(None), "beyond": completion("11")}
        return 200, next((reply for key, reply in replies.items() if key in said), completion("10"))

    with answering(answer) as url:
        rated = judge(url, timeout_seconds=0.5, failure_score=-1.0)
        rows = batch("fine", "late", "none", "empty", "beyond", "\ud800 fine")
        fine, slow, none, empty, beyond, broken = rated.scores(rows)
        assert fine == broken == 1.0
        assert "did not reply within 0.5 s" in slow
        assert "did not return a text, got 'None'" in empty
        for reason, said in ((none, "no idea"), (beyond, "11")):
            assert reason == f"the model gave no rating in [1, 10], its reply ends with {said!r}"
        late.set()
        assert rated(rows[2:4]).tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("status", [401, 404, 403])
def test_server_that_refuses_every_row_ends_the_run(status: int) -> None:
    with (
        answering(lambda *_: (status, {"error": "no such key"})) as url,
        pytest.raises(TrainingError, match=f"replied {status} .*no such key"),
    ):
        judge(url).scores(batch("fine", "good"))


def test_server_that_cannot_be_reached_ends_the_run() -> None:
    with answering(lambda *_: (200, {})) as url:
        pass
    with pytest.raises(TrainingError, match="cannot be reached"):
        judge(url, retries=0).scores(batch("fine", "good"))


@pytest.mark.parametrize(
    ("status", "reply", "message"),
    [
        (200, {}, "did not return a chat completion, got '{}'"),
        (200, [], r"did not return a chat completion, got '\[\]'"),
        (200, {"choices": ["7"]}, "did not return a chat completion"),
        (200, {"choices": [{"message": {"content": [7]}}]}, "did not return a text"),
        (
            200,
            {"choices": [{"message": {"content": "At first, 7"}, "finish_reason": "length"}]},
            "reply was cut at its token limit, it ends with 'At first, 7'",
        ),
        (200, "<html>", "did not return JSON"),
        (200, "[" * 100_000, "did not return JSON"),
        (200, "\xff", "did not return JSON"),
        (400, {"error": "the prompt is too long"}, "replied 400 .*the prompt is too long"),
        (404, {"error": "?"}, "replied 404"),
        (500, {}, "replied 500"),
    ],
)
def test_bad_reply_fails_one_row(status: int, reply: Any, message: str) -> None:
    def answer(path: str, sent: Any) -> tuple[int, Any]:
        is_bad = "bad" in sent["messages"][0]["content"]
        return (status, reply) if is_bad else (200, completion("10"))

    with answering(answer) as url:
        fine, bad, good = judge(url, retries=0).scores(batch("fine", "bad", "good"))
    assert (fine, good) == (1.0, 1.0)
    assert re.search(message, bad), bad


def test_judge_sees_the_whole_conversation() -> None:
    seen: list[str] = []

    def answer(path: str, sent: Any) -> tuple[int, Any]:
        seen.append(sent["messages"][0]["content"])
        return 200, completion("5")

    with answering(answer) as url:
        rated = judge(url)
        rated.scores(batch("2"))
    assert "Question:\n[system]\nbe brief\n\n[user]\n1 + 1?\n" in seen[0]
    assert rated.in_keys == (("text", "conversation"), ("text", "response"))


def test_key_that_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("schlüssel")
    for name in ("key", "none"):
        with pytest.raises(titanrl.ConfigError, match=f"key_file '{tmp_path}/{name}' cannot be read"):
            judge("http://a", key_file=str(tmp_path / name)).scores(batch("fine"))


def graded(*responses: str, rubrics: list[Any] | None = None, groups: list[int] | None = None) -> TensorDict:
    rows = batch(*responses)
    rows["text", "columns"] = [{"rubric": each} for each in rubrics or [None] * len(responses)]
    rows["group_id"] = torch.tensor(groups or [0] * len(responses))
    return rows


def test_rubric_is_the_weighted_share_of_the_criteria_that_are_met() -> None:
    def answer(path: str, sent: Any) -> tuple[int, Any]:
        response, criterion = re.findall(r"(?:Answer|Criterion):\n(.*)", sent["messages"][0]["content"])
        return 200, completion(f"I looked.\nVerdict: {'yes' if criterion in response else 'No'}.")

    rubric = [{"criterion": "short", "weight": 3}, {"description": "kind", "points": 1}, "clear"]
    penalty = [{"criterion": "short"}, {"criterion": "rude", "weight": -2.0}]
    rows = graded(
        "short and clear",
        "kind",
        "short, rude",
        "short",
        rubrics=[rubric, json.dumps(rubric), penalty, penalty],
    )
    with answering(answer) as url:
        assert judge(url, mode="rubric").scores(rows) == [4 / 5, 1 / 5, 0.0, 1.0]


def test_row_without_a_readable_rubric_and_a_criterion_without_a_verdict_fail_alone() -> None:
    def answer(path: str, sent: Any) -> tuple[int, Any]:
        return 200, completion("perhaps" if "odd" in sent["messages"][0]["content"] else "yes")

    rows = graded("a", "b", "c", "d", "e", rubrics=["fine", ["odd", "x"], None, [{"weight": 1}], ["x"] * 3])
    with answering(answer) as url:
        text, odd, missing, empty, long = judge(url, mode="rubric", max_requests=2).scores(rows)
    assert "the column 'rubric' Expecting value" in text
    assert odd == "the model's last line is none of yes or no, its reply ends with 'perhaps'"
    assert missing == "the column 'rubric' must be a list of criteria, got None"
    assert "must have texts, or mappings with `criterion` and `weight`, got {'weight': 1}" in empty
    assert long == "the rubric has 3 criteria, more than max_requests = 2"


def test_pairwise_asks_in_both_orders_so_that_a_preferred_position_decides_nothing() -> None:
    def answer(path: str, sent: Any) -> tuple[int, Any]:
        first, second = re.findall(r"Answer [AB]:\n(.*)", sent["messages"][0]["content"])
        better = {True: "A", False: "B"}[len(first) > len(second)]
        return 200, completion("A" if "biased" in first + second else "tie" if first == second else better)

    with answering(answer) as url:
        against_reference = judge(url, mode="pairwise").scores(graded("longer", "", "biased", "2"))
        group = judge(url, mode="pairwise", opponents="group")
        assert group.in_keys == (("text", "conversation"), ("text", "response"), "group_id")
        within = group.scores(graded("aaa", "b", "aa", "c", "alone", groups=[1, 1, 1, 2, 3]))
    assert against_reference == [1.0, 0.0, 0.5, 0.5]
    assert within[:3] == [1.0, 0.0, 0.5]
    assert within[3] == "its group has no other response to compare it with; raise samples_per_prompt"


def test_equal_requests_are_made_once_and_failures_again(tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(path: str, sent: Any) -> tuple[int, Any]:
        asked.append(sent["messages"][0]["content"])
        return 200, completion("no idea" if "bad" in asked[-1] else "10")

    keys = {"template": "{response}", "cache_file": str(tmp_path / "new" / "judge.db")}
    with answering(answer) as url:
        first = judge(url, template="{response}")
        assert first.scores(batch("fine", "fine", "bad"))[:2] == [1.0, 1.0]
        first.scores(batch("fine", "bad"))
        assert sorted(asked) == ["bad", "bad", "fine"]
        asked.clear()
        judge(url, **keys).scores(batch("fine"))
        judgement_cache.cache_clear()
        assert judge(url, **keys).scores(batch("fine")) == [1.0]
        assert judge(url, **keys, scale=[1, 19]).scores(batch("fine")) == [0.5]
        assert asked == ["fine", "fine"]
        (tmp_path / "broken.db").write_text("no database" * 999)
        with pytest.raises(
            titanrl.ConfigError, match=r"cache_file '.*broken.db' cannot be used: file is not"
        ):
            judge(url, cache_file=str(tmp_path / "broken.db")).scores(batch("fine"))


@pytest.mark.parametrize(
    "reply", ["yes", "Yes.", "I think.\n**YES**", "Verdict: yes", "[[yes]]", "The answer is: yes"]
)
def test_choice_is_read(reply: str) -> None:
    assert parse_choice(reply, {"yes": 1.0, "no": 0.0}) == 1.0


@pytest.mark.parametrize("reply", ["", "yes and no", "yes, but", "yes\nI am sure", "not", "y"])
def test_ambiguous_choice_is_a_failure(reply: str) -> None:
    assert isinstance(parse_choice(reply, {"yes": 1.0, "no": 0.0}), str)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"endpoint": "node:1"}, "endpoint must begin with http"),
        ({"template": "How good?"}, "template must contain {response}"),
        ({"scale": [3, 3]}, "scale must be .* low < high, got"),
        ({"retries": -1}, "retries must be in"),
        ({"mode": "rubric", "template": "{response}"}, "template must contain {criterion} with mode"),
        ({"mode": "pairwise", "template": "{response}"}, "template must contain {first}"),
        ({"mode": "rubric", "scale": [0, 1]}, "scale is not used with mode = 'rubric'"),
        ({"rubric": "criteria"}, "rubric is not used with mode = 'rating', got 'criteria'; leave it out"),
        ({"opponents": "group"}, "opponents is not used with mode = 'rating'"),
    ],
)
def test_wrong_table_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(titanrl.ConfigError, match=message):
        judge("http://a", **keys)
