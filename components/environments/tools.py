"""Rollouts in which the policy calls tools."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from titanrl.errors import ConfigError
from titanrl.protocols import Environment, RolloutLimit, Trajectory
from titanrl.registry import Range, declared, name_of, register
from titanrl.registry.decode import Flattened
from titanrl.runtime.tools.formats import FORMATS
from titanrl.runtime.tools.messages import instructions, prints_role_tool, result_messages
from titanrl.runtime.tools.parse import ToolParser, opens_thoughts, prints_tools, recognise, special_tokens
from titanrl.runtime.tools.table import ToolTable
from titanrl.runtime.tools.toolbox import OUTCOMES, Toolbox, ToolSession

if TYPE_CHECKING:
    from titanrl.protocols import Ask, Chat, EnvironmentContext, RolloutRequest

__all__ = ["Tools"]


@register("environment", "tools")
@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Environment in which the policy may call tools before it answers.

    Each response is read for calls, all calls of a response run at the same time, and their results are the
    next messages. The rollout ends with a response without a call, or at a limit. The reward of a `toolset`
    is the rollout's; other rewards score the last response. [Tools](../tools.md) describes formats of calls,
    limits and outcomes.
    """

    tool: tuple[Annotated[ToolTable, Flattened("tool")], ...]
    """The tools, one table each."""
    max_calls: Annotated[int, Range("[1, inf)")] = 16
    """Largest number of calls in a rollout. Further ones get an error as their result."""
    format: str = "auto"
    """Format in which the policy writes calls: `hermes`, `qwen3_coder`, `glm`, `mistral`, `deepseek` or
    `llama3`. `auto`: the one that the chat template prints. With a template that prints no tools, they are
    described in the system message, in the format `hermes`."""

    def __post_init__(self) -> None:
        if not self.tool:
            raise ValueError("tool must name one tool or more, got none; add [[environment.tool]].")
        if self.format != "auto":
            ToolParser(self.format)

    @property
    def requires(self) -> tuple[str, ...]:
        """Packages of the tools."""
        return tuple(package for each in self.tool for package in declared(each.component, "requires"))

    def problems(self) -> list[tuple[str, str]]:
        """Returns the keys of tools that this machine cannot satisfy, each with the reason and the remedy."""
        return [
            (f"tool.{i}.{key}", text)
            for i, each in enumerate(self.tool)
            for key, text in getattr(each.component, "problems", list)()
        ]

    def notices(self) -> list[str]:
        """Returns what a user should know about the tools on this machine."""
        return [text for each in self.tool for text in getattr(each.component, "notices", list)()]

    def start(self, context: EnvironmentContext) -> LiveTools:
        """Starts the tools.

        Raises:
            ConfigError: a tool cannot be started, or the format of calls is unknown.
        """
        return LiveTools(self, context)


class LiveTools(Environment):
    """Live environment of `tools`."""

    def __init__(self, settings: Tools, context: EnvironmentContext) -> None:
        for table in settings.tool:
            for package in declared(table.component, "requires"):
                if importlib.util.find_spec(package) is None:
                    raise ConfigError(
                        f"[[environment.tool]] {name_of(table.component)!r} needs the package {package!r}, "
                        f"which is not installed; pip install 'titanrl[{package}]'."
                    )
        self._context = context
        tokenizer = context.tokenizer
        prints = prints_tools(tokenizer)
        name = settings.format
        if name == "auto":
            name = recognise(tokenizer) or ("" if prints else "hermes")
        if not name:
            raise ConfigError(
                "[environment] format must be set, because the chat template prints tools, but no call in a "
                f"known format; set it to one of {', '.join(FORMATS)}."
            )
        try:
            self._toolbox = Toolbox(settings.tool, max_calls=settings.max_calls)
        except ValueError as error:
            raise ConfigError(f"[environment] {error}") from None
        schemas = self._toolbox.schemas
        self._schemas = schemas if prints else []
        self._instructions = "" if prints else instructions(schemas)
        self._parser = ToolParser(name, schemas, opens_thoughts=opens_thoughts(tokenizer))
        self._role = "tool" if prints and prints_role_tool(tokenizer, schemas) else "user"
        self._special = special_tokens(tokenizer)

    async def run(self, row: RolloutRequest, ask: Ask) -> Trajectory:
        """Lets the policy call tools until it answers."""
        session = await self._toolbox.open(row)
        try:
            messages = _with_text(row.messages, self._instructions, session.observations)
            chat = self._context.chat(messages, ask, tools=self._schemas)
            seconds, is_limited = await self._rounds(chat, session)
            metrics = _metrics(session, seconds, is_limited)
            return Trajectory(await session.reward(), metrics=metrics, transcript=chat.messages)
        finally:
            await session.close()

    def close(self) -> None:
        """Closes the tools."""
        self._toolbox.close()

    async def _rounds(self, chat: Chat, session: ToolSession) -> tuple[float, bool]:
        """Asks and calls; returns the time of the calls, seconds, and whether a limit ended the rollout."""
        seconds = 0.0
        while True:
            try:
                message = await chat.ask()
            except RolloutLimit:
                return seconds, True
            calls = self._parser.parse(message["content"]).calls
            if not calls:
                return seconds, False
            first = session.num_calls
            results = await session.call(calls)
            seconds += max(result.seconds for result in results)
            chat.add(*result_messages(results, first=first, role=self._role, special=self._special))


def _metrics(session: ToolSession, seconds: float, is_limited: bool) -> dict[str, float]:
    outcomes = {f"calls_{name}": float(session.outcomes[name]) for name in OUTCOMES}
    return {
        "calls": float(session.num_calls),
        **outcomes,
        "results_cut": float(session.outcomes["cut"]),
        "tool_seconds": seconds,
        "unanswered": float(is_limited),
    }


def _with_text(
    messages: Sequence[Mapping[str, Any]] | str, instructions: str, observations: Sequence[str]
) -> list[dict[str, Any]]:
    """Returns the prompt with instructions in its system message and observations in its last message."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    chat = [dict(message) for message in messages]
    if observations:
        chat[-1]["content"] = "\n\n".join([str(chat[-1]["content"]), *observations])
    if instructions and chat[0]["role"] == "system":
        chat[0]["content"] = f"{chat[0]['content']}\n\n{instructions}"
    elif instructions:
        chat.insert(0, {"role": "system", "content": instructions})
    return chat
