"""Text into parameters, by their types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from gatewise.errors import GatewiseError
from gatewise.methods import Acdc, Method, Problem, find_method
from gatewise.methods.parameters import parameters_of
from gatewise.methods.registry import methods


@dataclass(frozen=True)
class Fake(Method):
    count: int = 1
    rate: float = 0.5
    flag: bool = False
    way: Literal["a", "b"] = "a"
    batch: int | None = None
    label: str | None = "x"

    def search(self, problem: Problem) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("count=3", 3),
        ("rate=1e-3", 1e-3),
        ("flag=yes", True),
        ("flag=False", False),
        ("way=b", "b"),
        ("batch=none", None),
        ("batch=4", 4),
        ("label=none", None),
        ("label=a=b", "a=b"),
    ],
)
def test_values_by_type(text: str, expected: Any) -> None:
    name, value = text.split("=", 1)
    for given in (value, expected):  # as text and as it is
        parsed = Fake().parse({name: given})[name]
        assert parsed == expected
        assert type(parsed) is type(expected)
    assert getattr(Fake().with_parameters({name: value}), name) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("count=1.5", "a whole number"),
        ("rate=fast", "a number"),
        ("flag=maybe", "true or false"),
        ("way=c", "a or b"),
        ("batch=x", "a whole number or none"),
    ],
)
def test_wrong_values(text: str, message: str) -> None:
    with pytest.raises(GatewiseError, match=f"{text}: expected {message}"):
        Fake().with_parameters(dict([text.split("=", 1)]))


def test_every_parameter_of_every_method_can_be_set() -> None:
    for method in methods().values():
        values = {name: str(parameter.value) for name, parameter in parameters_of(method).items()}
        assert method.with_parameters(values) == method


def test_unknown_parameters_are_refused() -> None:
    with pytest.raises(GatewiseError, match="Fake has no parameter 'steps'; its parameters are count, rate"):
        Fake().with_parameters({"steps": 1})
    with pytest.raises(GatewiseError, match="count=True: expected a whole number"):
        Fake().with_parameters({"count": True})


def test_a_method_is_found_by_its_name_its_class_or_itself() -> None:
    assert find_method("acdc") == Acdc()
    assert find_method(Acdc(combine="either")).combine == "either"  # type: ignore[attr-defined]
    assert find_method("gatewise.methods:Acdc") == Acdc()
    assert (Fake.name, Fake.title, Acdc.title) == ("Fake", "Fake", "ACDC")
    with pytest.raises(GatewiseError, match="there is no method 'acdcc'. Did you mean 'acdc'"):
        find_method("acdcc")
    with pytest.raises(GatewiseError, match="is a function; expected a gatewise Method"):
        find_method("gatewise.methods:discover")
