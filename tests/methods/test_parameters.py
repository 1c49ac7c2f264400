"""Text into parameters, by their types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from gatewise.errors import GatewiseError
from gatewise.methods.parameters import parameters_of, parse_parameter
from gatewise.methods.registry import methods


@dataclass(frozen=True)
class Config:
    count: int = 1
    rate: float = 0.5
    flag: bool = False
    way: Literal["a", "b"] = "a"
    batch: int | None = None
    name: str | None = "x"


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
        ("name=none", None),
        ("name=a=b", "a=b"),
    ],
)
def test_values_by_type(text: str, expected: Any) -> None:
    value = parse_parameter("m", Config, *text.split("=", 1))
    assert value == expected
    assert type(value) is type(expected)


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
        parse_parameter("m", Config, *text.split("=", 1))


def test_every_parameter_of_every_method_can_be_set() -> None:
    for method in methods().values():
        for parameter in parameters_of(method.config).values():
            parsed = parse_parameter(method.name, method.config, parameter.name, str(parameter.default))
            assert parsed == parameter.default
