"""Parameters of a method from text, by the types of its config's fields."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gatewise.errors import GatewiseError

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_PLAIN: dict[Any, Callable[[str], Any]] = {
    bool: lambda text: _TRUTH[text.lower()],
    int: int,
    float: float,
    str: str,
    type(None): lambda text: {"none": None}[text.lower()],
}


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One field of a method's config."""

    name: str
    type: Any
    default: Any

    @property
    def values(self) -> str:
        """What it may be, for people."""
        return _describe(self.type)


def parameters_of(config: type[Any]) -> dict[str, Parameter]:
    hints = get_type_hints(config)
    return {field.name: Parameter(field.name, hints[field.name], field.default) for field in dataclasses.fields(config)}


def parse_parameter(method: str, config: type[Any], name: str, text: str) -> Any:
    """The value that a text means for one of the method's parameters."""
    known = parameters_of(config)
    if name not in known:
        raise GatewiseError(f"{method} has no parameter {name!r}; its parameters are {', '.join(known)}.")
    for kind in _alternatives(known[name].type):
        try:
            if get_origin(kind) is Literal:
                return {str(choice): choice for choice in get_args(kind)}[text]
            return _PLAIN[kind](text)
        except (ValueError, KeyError):
            continue
    raise GatewiseError(f"{name}={text}: expected {known[name].values}.")


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """`int | None` -> None, int: `none` means None also where any text would do."""
    if get_origin(kind) not in (Union, types.UnionType):
        return (kind,)
    return tuple(sorted(get_args(kind), key=lambda member: member is not type(None)))


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(str(choice) for choice in get_args(kind))
    if len(_alternatives(kind)) > 1:
        return " or ".join(_describe(member) for member in reversed(_alternatives(kind)))
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "none"}
    return names.get(kind, str(kind))
