"""Contracts of environments: rollouts that ask the policy several times and have a reward of their own."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from titanrl.protocols.rollout import Completion, RolloutRequest

__all__ = [
    "Ask",
    "Chat",
    "Environment",
    "EnvironmentContext",
    "EnvironmentSettings",
    "RolloutLimit",
    "Sampling",
    "Trajectory",
    "TrajectoryRow",
]


class RolloutLimit(Exception):
    """Raised by ``ask`` where a rollout may not sample more: its turns, or its context, are used up.

    An environment may catch it and return a trajectory with a reward. Otherwise the rollout ends here: its
    rows are trained on, and its environment's reward is missing.
    """


class Sampling(NamedTuple):
    """Parameters of one request to the policy."""

    max_tokens: int | None = None
    """Longest response, tokens, end token included; None: [sampler] max_response_tokens."""
    agent_id: int = 0
    """Agent that acts, for environments with several; the tokens of each agent are rows of their own."""
    is_trained: bool = True
    """Whether the sampled tokens are trained on."""


POLICY = Sampling()
"""The parameters of an ordinary request."""


class Ask(Protocol):
    """The policy as an environment sees it: token ids in, a sampled response out."""

    async def __call__(self, ids: Sequence[int], sampling: Sampling = POLICY) -> Completion:
        """Return the policy's response to a prompt.

        A prompt that begins with the ids of an earlier prompt and its response continues their row. Any other
        prompt starts a row of its own. Prompt tokens are never trained on.

        Args:
            ids: the whole prompt, token ids.
            sampling: parameters of this request.

        Raises:
            RolloutLimit: the rollout has no turns left, or no space for a token behind this prompt.
            ValueError: the prompt is empty.
        """
        ...

    def room(self, ids: Sequence[int]) -> int:
        """Return how many tokens a response to this prompt may have; 0 without turns left."""
        ...


class TrajectoryRow(NamedTuple):
    """One row of a rollout: a prompt, and what follows it, sampled and given."""

    prompt_ids: Sequence[int]
    completion: Completion
    """Its ``mask`` is true for sampled tokens."""
    agent_id: int = 0
    turns: Sequence[int] = (0,)
    """Numbers of the agent's turns that the row holds."""


class Trajectory(NamedTuple):
    """The result of one rollout."""

    reward: float | Mapping[int, float] | None = None
    """Reward of the whole rollout, or of each agent; None: it has none. The [[reward]] `environment` reads
    it."""
    rewards: Mapping[str, float] = {}
    """Further rewards by name, for [[reward]] `environment` with ``output``."""
    turn_rewards: Sequence[float] = ()
    """Reward of each request in the order of asking; empty: none has its own. They are part of ``reward``."""
    states: Sequence[Hashable] = ()
    """State that each request acted in, equal for equal states; empty: all differ."""
    metrics: Mapping[str, float] = {}
    """Numbers that are reported as means over the rollouts, ``environment/NAME``."""
    transcript: Sequence[Mapping[str, Any]] = ()
    """The messages of the rollout, JSON values, for samples, reports and rewards."""
    rows: Sequence[TrajectoryRow] | None = None
    """Rows to train on; None: those that follow from the requests."""


class Environment(Protocol):
    """A live environment. One object serves all rollouts of a process, many at a time.

    All rollouts run in one thread as asyncio tasks, so an environment awaits where it waits and leaves long
    computations to other threads or processes. It must not draw from the global random state: ``row``
    identifies the rollout, and a random generator may be seeded from it.
    """

    async def run(self, row: RolloutRequest, ask: Ask) -> Trajectory:
        """Return the trajectory of one rollout. An exception fails this rollout only, and is counted.

        Args:
            row: the prompt with its columns, group (``prompt_index``) and sample (``sample_index``).
            ask: samples from the policy.
        """
        ...

    def close(self) -> None:
        """Release all resources; the default does nothing."""
        return


class Chat(Protocol):
    """A chat with the policy that keeps the sampled tokens as they are: see ``EnvironmentContext.chat``."""

    messages: list[dict[str, Any]]
    """All messages so far."""

    async def ask(self, sampling: Sampling = POLICY) -> dict[str, Any]:
        """Return the policy's next message, which is also added to ``messages``.

        Raises:
            RolloutLimit: see ``Ask``.
        """
        ...

    def add(self, *messages: Mapping[str, Any]) -> None:
        """Add messages of users or tools, which the policy reads next."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentContext:
    """The process that an environment runs in."""

    tokenizer: Any
    """The model's Hugging Face tokenizer."""
    eos_ids: tuple[int, ...]
    """Every token id that ends a response."""
    max_length: int
    """Longest row, tokens, over all turns."""
    max_response_tokens: int
    """Longest response to one request, tokens."""
    max_turns: int
    """Largest number of requests of a rollout."""
    seed: int
    open_chat: Any = field(repr=False)
    """See ``chat``."""

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | str,
        ask: Ask,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        agent_id: int = 0,
    ) -> Chat:
        """Return a chat that renders messages with the model's template and asks the policy.

        Text between two turns comes from the template; sampled tokens are never encoded again. Where a
        template rewrites earlier turns, such as removing their thoughts, the next turn starts a new row.

        Args:
            messages: the messages so far; text is one message of a user.
            ask: samples from the policy.
            tools: schemas of the functions that the policy may call, for the template.
            agent_id: agent that the policy plays.
        """
        chat: Chat = self.open_chat(messages, ask, tools=tools, agent_id=agent_id)
        return chat


class EnvironmentSettings(Protocol):
    """A registered environment: its fields are its TOML table, ``start`` creates the live environment."""

    def start(self, context: EnvironmentContext) -> Environment: ...
