"""Loss tokens of dataset examples: assistant turns and their end tokens, for all kinds of templates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from titanrl.data.encode import TokenizedExample, tokenize_example
from titanrl.data.tokenizer import ChatTokenizer
from titanrl.models import tiny
from titanrl.protocols import Example, ProcessStep, Prompt

END = 2
"""Id of the tiny tokenizer's <eos>."""
SYSTEM = {"role": "system", "content": "be brief"}
CHAT = (
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "and 2+2"},
    {"role": "assistant", "content": "4"},
)
THINKING = (
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "<t>hm</t>2"},
    {"role": "user", "content": "and 2+2"},
    {"role": "assistant", "content": "<t>ah</t>4"},
)
TURN = "{{ message['role'] }}: {{ message['content'] }}"
PROMPT = "{% if add_generation_prompt %}assistant: {% endif %}"
NO_END = "{% for message in messages %}" + TURN + "\n{% endfor %}" + PROMPT
MARKED = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}assistant: {% generation %}"
    "{{ message['content'] }}{% endgeneration %}<eos>\n{% else %}"
    + TURN
    + "\n{% endif %}{% endfor %}"
    + PROMPT
)
FORGETFUL = (
    "{% for message in messages %}{% set is_old = message['role'] == 'assistant' and not loop.last %}"
    "{{ message['role'] }}: {{ message['content'].split('</t>')[-1] if is_old else message['content'] }}"
    "{% if message['role'] == 'assistant' %}<eos>{% endif %}\n{% endfor %}" + PROMPT
)
MARKED_FORGETFUL = FORGETFUL.replace(
    "{{ message['role'] }}: {{ message['content'].split('</t>')[-1] if is_old else message['content'] }}"
    "{% if message['role'] == 'assistant' %}<eos>{% endif %}\n",
    "{{ message['role'] }}: {% if message['role'] == 'assistant' %}{% generation %}"
    "{{ message['content'].split('</t>')[-1] if is_old else message['content'] }}<eos>{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}\n",
)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ChatTokenizer]:
    """Returns a function from a chat template to the tiny model's tokenizer with it."""
    folder = tiny.create(tmp_path_factory.mktemp("model") / "tiny")
    return lambda template=None: ChatTokenizer(folder, template)


def spans(row: TokenizedExample, tokens: ChatTokenizer) -> list[str]:
    """Returns each run of loss tokens as text."""
    runs: list[list[int]] = []
    for place, (token, is_trained) in enumerate(zip(row.ids, row.loss_mask, strict=True)):
        if is_trained:
            if not place or not row.loss_mask[place - 1]:
                runs.append([])
            runs[-1].append(token)
    return [tokens.decode_prompt(run) for run in runs]


def test_loss_mask_covers_every_assistant_turn_and_its_eos(
    tokens: Callable[..., ChatTokenizer],
) -> None:
    row = tokenize_example(Example((), CHAT), tokens())
    assert spans(row, tokens()) == ["2<eos>", "4<eos>"]
    whole = tokens().encode_text(tokens().render(CHAT))
    assert row.ids == whole[: len(row.ids)], "ids are those of the whole conversation"
    assert whole[len(row.ids) :] == tokens().encode_text("\n"), "only what follows the last end is left out"


def test_assistant_turns_of_the_prompt_are_not_trained(tokens: Callable[..., ChatTokenizer]) -> None:
    row = tokenize_example(Example((SYSTEM, *CHAT[:3]), CHAT[3:]), tokens())
    assert spans(row, tokens()) == ["4<eos>"]
    marked = tokens(MARKED)
    assert spans(tokenize_example(Example(CHAT[:3], CHAT[3:]), marked), marked) == ["4<eos>"]


def test_prompt_tokens_equal_those_of_the_sampler(tokens: Callable[..., ChatTokenizer]) -> None:
    row = tokenize_example(Example(CHAT[:3], CHAT[3:]), tokens())
    assert row.ids[: row.loss_mask.index(True)] == tokens().encode(Prompt(CHAT[:3]))


def test_template_without_eos_trains_newlines_and_one_final_eos(
    tokens: Callable[..., ChatTokenizer],
) -> None:
    plain = tokens(NO_END)
    assert spans(tokenize_example(Example((), CHAT), plain), plain) == ["2\n", "4\n<eos>"]


def test_generation_marks_are_used_and_completed_by_eos(
    tokens: Callable[..., ChatTokenizer],
) -> None:
    marked = tokens(MARKED)
    assert spans(tokenize_example(Example((), CHAT), marked), marked) == ["2<eos>", "4<eos>"]


def test_template_that_drops_reasoning_is_refused_without_generation_marks(
    tokens: Callable[..., ChatTokenizer],
) -> None:
    with pytest.raises(
        ValueError, match=r"message 1 has no span of its own .* \{% generation %\} marks, or make each"
    ):
        tokenize_example(Example((), THINKING), tokens(FORGETFUL))
    # One answer a row is what the message proposes.
    forgetful = tokens(FORGETFUL)
    alone = tokenize_example(Example(THINKING[:3], THINKING[3:]), forgetful)
    assert spans(alone, forgetful) == ["<t>ah</t>4<eos>"]
    marked = tokens(MARKED_FORGETFUL)
    assert spans(tokenize_example(Example((), THINKING), marked), marked) == ["2<eos>", "<t>ah</t>4<eos>"]


def test_template_error_is_reported(tokens: Callable[..., ChatTokenizer]) -> None:
    strict = tokens("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ValueError, match="rejected by the chat template: roles must alternate"):
        tokenize_example(Example((), CHAT), strict)


def test_text_is_tokenized_apart_from_its_prompt_with_one_eos(tokens: Callable[..., ChatTokenizer]) -> None:
    made = tokens()
    row = tokenize_example(Example("1+1=", "2"), made)
    assert row.ids == [*made.encode(Prompt("1+1=")), *made.encode_text("2"), END]
    assert spans(row, made) == ["2<eos>"]
    assert tokenize_example(Example("1+1=", "2<eos>"), made).ids == row.ids
    assert spans(tokenize_example(Example("1+1=", ""), made), made) == ["<eos>"]


def test_eos_with_id_0_is_appended(tokens: Callable[..., ChatTokenizer]) -> None:
    made = tokens()
    made.tokenizer.eos_token, made.eos_ids = "<pad>", (0,)
    assert tokenize_example(Example("q", "a"), made).ids[-1] == 0


def test_eos_of_generation_config_ends_a_turn(tokens: Callable[..., ChatTokenizer]) -> None:
    made = tokens(NO_END)
    made.eos_ids = (END, made.encode_text("\n")[0])
    assert spans(tokenize_example(Example((), CHAT), made), made) == ["2\n", "4\n"]


def test_step_label_is_on_the_first_token_after_the_step(tokens: Callable[..., ChatTokenizer]) -> None:
    made = tokens()
    row = tokenize_example(
        Example("q", (ProcessStep("one", 1.0, "; "), ProcessStep("two", 0.25, "; "))), made
    )
    assert made.decode_prompt(row.ids) == "qone; two;"
    assert row.step_labels == {4: 1.0, 9: 0.25}
    assert [place for place, is_trained in enumerate(row.loss_mask) if is_trained] == [4, 9]
    chat = tokenize_example(Example(CHAT[:1], (ProcessStep("2", 1.0),)), made)
    assert chat.ids[: chat.loss_mask.index(True)] == [*made.encode(Prompt(CHAT[:1])), *made.encode_text("2")]


class Merging:
    """A tokenizer with a token for 'ab', which may not span the border between prompt and answer."""

    eos_ids = (9,)
    eos_id = 9
    template = ""
    TABLE = ("ab", "a", "b", "!")

    def encode_text(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            part = next(part for part in self.TABLE if text.startswith(part))
            ids.append(self.TABLE.index(part))
            text = text[len(part) :]
        return ids

    def render(self, messages: Sequence[dict[str, str]], **options: Any) -> str:
        return "".join(message["content"] for message in messages)

    def assistant_spans(self, messages: Any, tools: Any) -> None:
        return None


def test_token_across_the_prompt_boundary_is_split_as_in_sampling() -> None:
    messages = ({"role": "user", "content": "!a"}, {"role": "assistant", "content": "b!"})
    row = tokenize_example(Example(messages[:1], messages[1:]), Merging())  # type: ignore[arg-type]
    assert row.ids == [3, 1, 2, 3, 9]
    assert row.loss_mask == [False, False, True, True, True]


def test_row_without_a_loss_token_is_refused(tokens: Callable[..., ChatTokenizer]) -> None:
    silent = tokens("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    silent.eos_ids, silent.tokenizer.eos_token = (), None
    with pytest.raises(ValueError, match="has no token to train on"):
        tokenize_example(Example((), (CHAT[0], {"role": "assistant", "content": ""})), silent)


def test_generation_prompt_of_the_tiny_template_precedes_every_response(tmp_path: Path) -> None:
    made = ChatTokenizer(tiny.create(tmp_path / "tiny"))
    assert made.render(CHAT[:2]).startswith(made.render(CHAT[:1], add_generation_prompt=True))


def test_response_of_a_reward_has_its_special_tokens_but_the_end_token(tmp_path: Path) -> None:
    made = ChatTokenizer(tiny.create(tmp_path / "tiny"))
    made.tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    ids = made.encode_text("<think>2+2</think>4")
    assert made.eos_id is not None
    assert made.decode_response([*ids, made.eos_id]) == "<think>2+2</think>4"
    assert made.decode_response(ids) == "<think>2+2</think>4"
    assert made.decode([*ids, made.eos_id]) == "2+24"
    assert made.decode_response([made.eos_id]) == ""


@pytest.mark.parametrize("template", [None, MARKED])
def test_turns_of_weight_0_are_not_trained(
    template: str | None, tokens: Callable[..., ChatTokenizer]
) -> None:
    made = tokens(template)
    messages = (CHAT[0], {**CHAT[1], "weight": 0}, CHAT[2], {**CHAT[3], "weight": 1})
    assert spans(tokenize_example(Example((), messages), made), made) == ["4<eos>"]
    with pytest.raises(ValueError, match=r"weight in message 1 that is neither 0 nor 1, got 0\.5"):
        tokenize_example(Example((), (CHAT[0], {**CHAT[1], "weight": 0.5})), made)


def test_tools_and_tool_calls_of_an_example_are_rendered_or_refused(
    tokens: Callable[..., ChatTokenizer],
) -> None:
    tool = {"type": "function", "function": {"name": "add"}}
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add"}}]}
    row = Example((CHAT[0],), (call,), tools=(tool,))
    with pytest.raises(ValueError, match="has tools, which the chat template does not print"):
        tokenize_example(row, tokens())
    with pytest.raises(ValueError, match="tool_calls in message 1, which the chat template does not print"):
        tokenize_example(row._replace(tools=()), tokens())
    made = tokens(
        "{{ tools | tojson }}{% for m in messages %}{{ m.role }}: {{ m.content }}"
        "{% for call in m.tool_calls or [] %}[{{ call.function.name }}]{% endfor %}"
        "{% if m.role == 'assistant' %}<eos>{% endif %}{% endfor %}" + PROMPT
    )
    encoded = tokenize_example(row, made)
    assert spans(encoded, made) == ["[add]<eos>"]
    assert made.decode_prompt(encoded.ids).startswith('[{"type": "function"')


def test_role_that_the_template_ignores_is_refused(tokens: Callable[..., ChatTokenizer]) -> None:
    blind = tokens("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}")
    with pytest.raises(ValueError, match="without the content of message 0, role 'system'"):
        tokenize_example(Example((SYSTEM, CHAT[0]), (CHAT[1],)), blind)
