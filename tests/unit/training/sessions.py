"""Sessions for unit tests: real tables and a real Session around an engine of one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from tests.unit.algorithm.test_compute_advantages import algorithm
from titanrl import build
from titanrl.algorithm.objective import Objective
from titanrl.config.tables import Loop
from titanrl.training.session import Session
from titanrl.training.state import LoopState, components_of


@dataclass(kw_only=True)
class OneProcess:
    """The parts of an engine that the stages use, on one rank."""

    policy: Any = None
    critic: Any = None
    frozen: Mapping[str, Any] = field(default_factory=dict)
    score: Callable[..., Any] | None = None
    update: Callable[..., Any] | None = None
    measure: Callable[..., Any] | None = None
    rank: int = 0
    world_size: int = 1
    dp_rank: int = 0
    dp_degree: int = 1
    dp_group: None = None
    row_groups: Sequence[Any] = ()
    tensor_parallel_degree: int = 1


class Letters:
    """A tokenizer that decodes every token to the letter a."""

    def decode_response(self, ids: Sequence[int]) -> str:
        return "a" * len(ids)

    def token_strings(self, ids: Sequence[int]) -> list[str]:
        return ["a"] * len(ids)


class NoPosition:
    """A loader without a position."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        assert state_dict == {}


def loop_of(**keys: Any) -> Loop:
    return Loop(**({"steps": 10, "prompts_per_step": 4, "samples_per_prompt": 1} | keys))


def session_of(engine: OneProcess, **parts: Any) -> Any:
    """Return a session on one rank; ``parts`` replace its fields, and ``loop_keys`` are keys of [loop]."""
    chosen = parts.pop("algorithm", None) or algorithm(loss={"name": "sft"})
    loop = loop_of(**parts.pop("loop_keys", {}))
    objective = Objective(loss=chosen.loss)
    rewards, sampler = parts.get("rewards", ()), parts.get("sampler_table")
    given: dict[str, Any] = {
        "algorithm": chosen,
        "loop": loop,
        "engine": engine,
        "tokenizer": Letters(),
        "loader": None,
        "state": LoopState(NoPosition(), components_of(chosen, rewards, parts.get("critic"), sampler)),
        "objective": objective,
        "off_policy_objective": objective,
        "critic_objective": Objective(loss=build("loss", {"name": "value"})),
        "seed": 0,
        "max_length": 100,
    }
    return Session(**cast(Any, given | parts))
