"""Declarations of component classes beyond their fields: names, types, defaults and meanings."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, GetSetDescriptorType, MappingProxyType, MemberDescriptorType
from typing import Any, Literal

from titanrl.errors import did_you_mean, edit_distance_one
from titanrl.registry.values import is_of_type

__all__ = ["DECLARATIONS", "METHODS", "Declaration", "check_class", "declared", "declares", "with_article"]

BatchKeys = tuple[str | tuple[str, ...], ...]
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Declaration:
    """One class attribute, or property, that components of a kind may have."""

    type: Any
    default: Any
    """Value of a class that does not declare it."""
    meaning: str


IN_KEYS = Declaration(BatchKeys, (), "Batch keys that the component reads.")
RENAMED = Declaration(
    dict[str, str], {}, "Old key -> new key; an old key is an error that names the new one."
)
OUT_KEYS = Declaration(Names, (), "Batch keys that it writes beside those of every component of its kind.")
REQUIRES = Declaration(Names, (), "Packages that it imports only when it is used.")

_DECLARATIONS: dict[str, dict[str, Declaration]] = {
    "advantage": {
        "in_keys": IN_KEYS,
        "optional_keys": Declaration(BatchKeys, (), "Batch keys that it reads if something writes them."),
        "scope": Declaration(
            Literal["group", "batch"],
            "group",
            "batch: a row's advantage depends on other groups.",
        ),
        "is_group_relative": Declaration(
            bool, True, "Whether it compares the rows of a group, so that a group needs two or more."
        ),
    },
    "loss": {
        "in_keys": IN_KEYS,
        "needs": Declaration(
            tuple[Literal["entropy", "value", "sum_pi_squared", "candidate_logprob"], ...],
            (),
            "Outputs of the head that it reads beside the log-probs.",
        ),
        "paired": Declaration(
            bool, False, "Whether rows 2i and 2i + 1 are a preference pair that it compares."
        ),
        "couples_group": Declaration(
            bool,
            False,
            "Whether it compares the rows of a group; one pass then computes them all.",
        ),
        "couples_step": Declaration(
            bool, False, "Whether it compares all rows of an optimizer step, which is one pass then."
        ),
        "is_zero_without_advantage": Declaration(
            bool, False, "Whether rows with advantage 0 have no gradient, so that they can be skipped."
        ),
    },
    "kl": {
        "matches": Declaration(
            dict[str, str], {}, "What its value and its gradients equal in expectation, by placement."
        ),
    },
    "aggregation": {
        "sums_to": Declaration(
            Literal["1", "M", "M / B", "M / (B length)"],
            "1",
            "Sum of the weights: M loss tokens, B non-empty rows, length the component's key.",
        ),
    },
    "correction": {
        "in_keys": IN_KEYS,
        "selects": Declaration(
            bool,
            False,
            "Whether tokens that it drops leave loss_mask: denominators, KL and entropy do not see them.",
        ),
    },
    "filter": {
        "in_keys": IN_KEYS,
        "keeps_groups": Declaration(bool, True, "Whether it keeps or drops whole groups only."),
    },
    "kl_controller": {
        "controls": Declaration(
            Literal["kl", "entropy"], "kl", "Quantity that it measures: the KL term or the entropy."
        ),
    },
    "reward": {
        "in_keys": IN_KEYS,
        "out_keys": OUT_KEYS,
        "outputs": Declaration(Names, (), "Names of several results; the first one is the reward's value."),
        "per_token": Declaration(bool, False, "Whether it returns [n, L], one number per label position."),
        "per_row": Declaration(
            bool, False, "Whether it is called for each row alone, several rows at a time in threads."
        ),
        "in_columns": Declaration(
            Names, (), "Columns of a prompt's row that it needs, also within tables: `a.b`."
        ),
        "requires": REQUIRES,
    },
    "sampler": {"out_keys": OUT_KEYS, "requires": REQUIRES},
    "environment": {"requires": REQUIRES},
    "tool": {"requires": REQUIRES},
    "source": {
        "out_keys": OUT_KEYS,
        "is_paired": Declaration(
            bool,
            False,
            "Whether rows are pairs, chosen before rejected; declared by sources for [data] alone.",
        ),
        "requires": REQUIRES,
    },
}

DECLARATIONS: Mapping[str, Mapping[str, Declaration]] = MappingProxyType(
    {kind: {**own, "renamed": RENAMED} for kind, own in _DECLARATIONS.items()}
)
"""Kind of component -> what its classes may declare."""

METHODS = MappingProxyType(
    {
        "advantage": "__call__(self, batch)",
        "loss": "__call__(self, policy, batch)",
        "kl": "__call__(self, logprob, ref_logprob)",
        "aggregation": "__call__(self, loss_mask, group_id)",
        "correction": "__call__(self, batch)",
        "filter": "__call__(self, batch)",
        "kl_controller": "update(self, kl, num_sequences, step)",
        "reward": "__call__(self, batch)",
        "sampler": "start(self, context)",
        "source": "open(self)",
        "environment": "start(self, context)",
        "tool": "start(self)",
    }
)
"""Kind of component -> the method that does its work."""

STATELESS = ("source", "environment", "tool")
"""Kinds whose components may have no state: a source's position is the loader's, and unfinished rollouts
begin again."""

DEFAULTS: dict[str, Any] = {
    name: each.default for declarations in DECLARATIONS.values() for name, each in declarations.items()
}


def declared(component: Any, name: str) -> Any:
    """Returns what a component, or its class, declares under ``name``; else the declaration's default."""
    return getattr(component, name, DEFAULTS[name])


def declares(component: Any, name: str) -> bool:
    """Whether a component, or its class, has the declaration ``name`` at all."""
    assert name in DEFAULTS, name
    return hasattr(component, name)


def check_class(kind: str, name: str, cls: Any) -> None:
    """Refuses a class that cannot be a component of ``kind``.

    Raises:
        TypeError: no dataclass, an unknown declaration or one of the wrong type, or half of a state.
    """
    label = f"{kind} {name!r}"
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
        raise TypeError(
            f"{label} must be a dataclass, got {_described(cls)}; write:\n{_example(kind, name, cls)}"
        )
    for attribute, value in _class_attributes(cls):
        _check_declaration(kind, label, attribute, value)
    _check_state(kind, label, cls)


def _check_declaration(kind: str, label: str, attribute: str, value: Any) -> None:
    known = DECLARATIONS[kind]
    if attribute in known:
        if not isinstance(value, property) and not is_of_type(known[attribute].type, value):
            expected = _type_text(known[attribute].type)
            raise TypeError(f"{label}: {attribute} must be {expected}, got {value!r}.")
    elif not isinstance(value, property) or any(edit_distance_one(attribute, each) for each in known):
        near = did_you_mean(attribute, known) or ";"
        raise TypeError(
            f"{label}: {attribute!r} is no declaration of {with_article(kind)}{near} "
            f"declarations: {', '.join(known) or 'none'}. Begin the name of a constant with an underscore."
        )


def _check_state(kind: str, label: str, cls: type) -> None:
    has = {name: hasattr(cls, name) for name in ("state_dict", "load_state_dict", "on_step_end")}
    if kind in STATELESS and any(has.values()):
        method = next(name for name in has if has[name])
        raise TypeError(f"{label}: {with_article(kind)} has no state, got {method}(); remove it.")
    if has["state_dict"] != has["load_state_dict"]:
        method, other = sorted(("state_dict", "load_state_dict"), key=lambda each: not has[each])
        raise TypeError(f"{label}: {method}() needs {other}(); a checkpoint saves and restores a state.")
    if has["on_step_end"] and not has["state_dict"]:
        raise TypeError(
            f"{label}: on_step_end() needs state_dict() and load_state_dict(); without a state there is "
            "nothing to update."
        )


def _class_attributes(cls: type) -> Iterator[tuple[str, Any]]:
    """Yields the public attributes of a class and its bases that are neither fields nor methods."""
    fields = {field.name for field in dataclasses.fields(cls)}
    for base in cls.__mro__:
        if base is object or base.__module__ == "typing":
            continue
        for name, value in vars(base).items():
            is_slot = isinstance(value, MemberDescriptorType | GetSetDescriptorType)
            is_method = isinstance(value, staticmethod | classmethod) or callable(value)
            if not name.startswith("_") and name not in fields and not is_slot and not is_method:
                yield name, value


def _type_text(hint: Any) -> str:
    """Returns a declaration's type as messages show it."""
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(repr, typing.get_args(hint)))
    texts = {
        BatchKeys: "a tuple of batch keys, each a string or a tuple of strings",
        Names: "a tuple of strings",
        bool: "True or False",
        dict[str, str]: "a dict of strings",
    }
    if hint in texts:
        return texts[hint]
    return f"a tuple of {_type_text(typing.get_args(hint)[0])}"


def with_article(kind: str) -> str:
    """Returns ``a loss`` or ``an advantage``."""
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _described(cls: Any) -> str:
    if isinstance(cls, type):
        return f"the class {cls.__qualname__} without @dataclass"
    if isinstance(cls, FunctionType):
        return f"the function {cls.__name__}"
    return f"an object of type {type(cls).__name__}"


def _example(kind: str, name: str, cls: Any) -> str:
    class_name = cls.__name__ if isinstance(cls, type) else "".join(map(str.capitalize, name.split("_")))
    return (
        f'    @register("{kind}", "{name}")\n'
        "    @dataclass(frozen=True, slots=True, kw_only=True)\n"
        f"    class {class_name}:\n"
        f"        def {METHODS[kind]}: ..."
    )
