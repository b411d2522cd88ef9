"""What a component's class may declare beyond its fields, and what register() refuses."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from titanrl.registry import component_class, declared, declares, kinds, names, register
from titanrl.registry.declarations import DECLARATIONS, METHODS, STATELESS, with_article


def refused(kind: str, cls: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        register(kind, "mine")(cls)
    assert str(caught.value).startswith(message), str(caught.value)
    assert "mine" not in names(kind)


def class_with(**attributes: Any) -> type:
    return dataclass(frozen=True)(type("Mine", (), {"__call__": lambda *_: None, **attributes}))


@pytest.mark.parametrize("kind", kinds())
def test_defaults_have_the_type_that_they_stand_for(kind: str) -> None:
    register(kind, "mine")(class_with(**{key: each.default for key, each in DECLARATIONS[kind].items()}))
    assert kind in METHODS


def test_declarations_of_a_name_have_one_default() -> None:
    defaults: dict[str, Any] = {}
    for declarations in DECLARATIONS.values():
        for name, each in declarations.items():
            assert defaults.setdefault(name, each.default) == each.default


def test_unknown_declaration_is_refused_with_the_nearest_name() -> None:
    refused(
        "loss",
        class_with(couple_group=True),
        "loss 'mine': 'couple_group' is no declaration of a loss; did you mean 'couples_group'? "
        "declarations: in_keys, needs, ",
    )
    message = "advantage 'mine': 'couples_group' is no declaration of an advantage;"
    refused("advantage", class_with(couples_group=True), message)
    refused("loss", class_with(inkeys=property(lambda self: ())), "loss 'mine': 'inkeys' is no declaration")


def test_declaration_of_a_base_class_is_checked() -> None:
    class Base:
        couple_step = True

    @dataclass(frozen=True)
    class Mine(Base):
        pass

    refused("loss", Mine, "loss 'mine': 'couple_step' is no declaration of a loss")


@pytest.mark.parametrize(
    ("kind", "name", "value", "expected"),
    [
        ("loss", "in_keys", "advantage", "a tuple of batch keys, each a string or a tuple of strings"),
        ("loss", "in_keys", ["advantage"], "a tuple of batch keys, each a string or a tuple of strings"),
        ("reward", "in_keys", ((1, 2),), "a tuple of batch keys, each a string or a tuple of strings"),
        ("loss", "paired", 1, "True or False"),
        ("loss", "needs", ("values",), "a tuple of 'entropy' or 'value' or 'sum_pi_squared' or "),
        ("sampler", "requires", "vllm", "a tuple of strings"),
        ("advantage", "scope", "step", "'group' or 'batch'"),
    ],
)
def test_declaration_of_the_wrong_type_is_refused(kind: str, name: str, value: Any, expected: str) -> None:
    refused(kind, class_with(**{name: value}), f"{kind} 'mine': {name} must be {expected}")


def test_fields_methods_properties_and_private_names_are_no_declarations() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Mine:
        couple: bool = True
        _scale: ClassVar[float] = 2.0

        @property
        def longest(self) -> int:
            return 3

        @staticmethod
        def helper() -> None: ...

        @classmethod
        def other(cls) -> None: ...

        def __call__(self, policy: Any, batch: Any) -> None: ...

    assert register("loss", "mine")(Mine) is component_class("loss", "mine")


def test_declared_value_is_that_of_the_class_the_instance_or_the_default() -> None:
    dpo = component_class("loss", "dpo")
    assert declared(dpo, "paired") is True
    assert declared(dpo(), "couples_step") is False
    assert declared(dpo(), "couples_group") is False
    assert declared(None, "in_keys") == ()
    assert declares(dpo, "needs")
    assert not declares(dpo, "couples_group")


def square(policy: Any, batch: Any) -> None: ...


class Plain:
    def __call__(self, batch: Any) -> None: ...


@pytest.mark.parametrize(
    ("kind", "thing", "got", "class_name", "method"),
    [
        ("loss", square, "the function square", "Mine", "__call__(self, policy, batch)"),
        (
            "kl",
            functools.partial(max, 1),
            "an object of type partial",
            "Mine",
            "__call__(self, logprob, ref_logprob)",
        ),
        ("filter", Plain, "the class Plain without @dataclass", "Plain", "__call__(self, batch)"),
        ("source", lambda: 0, "the function <lambda>", "Mine", "open(self)"),
    ],
)
def test_what_is_no_dataclass_is_refused_with_an_example(
    kind: str, thing: Any, got: str, class_name: str, method: str
) -> None:
    refused(
        kind,
        thing,
        f"{kind} 'mine' must be a dataclass, got {got}; write:\n"
        f'    @register("{kind}", "mine")\n'
        "    @dataclass(frozen=True, slots=True, kw_only=True)\n"
        f"    class {class_name}:\n"
        f"        def {method}: ...",
    )


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind not in STATELESS])
def test_every_other_kind_may_have_state(kind: str) -> None:
    def method(*_: Any) -> None: ...

    state = {"state_dict": method, "load_state_dict": method}
    register(kind, "stateful")(class_with(**state, on_step_end=method))
    refused(kind, class_with(state_dict=method), f"{kind} 'mine': state_dict() needs load_state_dict()")
    refused(kind, class_with(load_state_dict=method), f"{kind} 'mine': load_state_dict() needs state_dict()")
    refused(kind, class_with(on_step_end=method), f"{kind} 'mine': on_step_end() needs state_dict()")


@pytest.mark.parametrize("kind", STATELESS)
def test_state_of_a_stateless_kind_is_refused(kind: str) -> None:
    def method(*_: Any) -> None: ...

    stateful = class_with(state_dict=method, load_state_dict=method)
    refused(kind, stateful, f"{kind} 'mine': {with_article(kind)} has no state, got state_dict(); remove it.")


def test_every_built_in_component_is_documented_by_the_table() -> None:
    # register() has checked each of them; the names of the methods are those that the protocols have.
    for kind, signature in METHODS.items():
        method = re.match(r"\w+", signature)
        assert method is not None
        for name in names(kind):
            assert any(method[0] in vars(base) for base in component_class(kind, name).__mro__), (kind, name)
