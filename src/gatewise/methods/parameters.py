"""Parameters of a method: the fields of its dataclass, and their values from text, by the fields' types."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import sys
import types
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gatewise.errors import GatewiseError

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_PARSERS: dict[Any, Callable[[str], Any]] = {
    bool: lambda text: _TRUTH[text.lower()],
    int: int,
    float: float,
    str: str,
    type(None): lambda text: {"none": None}[text.lower()],
}
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "none"}


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One field of a method."""

    name: str
    type: Any
    value: Any  # that the method has
    meaning: str = ""  # by the class's docstring

    @property
    def values(self) -> str:
        """What it may be, for people."""
        return _describe(self.type)

    def parse(self, given: Any) -> Any:
        """Return the value that is meant: by a text, or by a plain value, which is read as its text."""
        text, kinds = str(given), _alternatives(self.type)
        if not any(kind in _PARSERS or get_origin(kind) is Literal for kind in kinds):
            return given  # the method has to check it
        for kind in filter(_is_own, kinds):
            value = import_named(given) if isinstance(given, str) and ":" in given else given
            if isinstance(value, kind):
                return value
        for kind in kinds:
            try:
                if get_origin(kind) is Literal:
                    return {str(choice): choice for choice in get_args(kind)}[text]
                return _PARSERS[kind](text)
            except (ValueError, KeyError):
                continue
        raise GatewiseError(f"{self.name}={text}: expected {self.values}.")


def parameters_of(method: Any) -> dict[str, Parameter]:
    """List the parameters of a dataclass instance, by name."""
    try:
        hints = get_type_hints(type(method))
    except NameError:  # types that are imported for type checkers only
        hints = {}
    meanings = _meanings(inspect.getdoc(type(method)) or "")
    parameters = {}
    for name in (field.name for field in dataclasses.fields(method)):
        parameters[name] = Parameter(name, hints.get(name, Any), getattr(method, name), meanings.get(name, ""))
    return parameters


def _meanings(docstring: str) -> dict[str, str]:
    """What `Args:` of a docstring says of each parameter."""
    meanings: dict[str, str] = {}
    name = ""
    for line in docstring.partition("Args:\n")[2].splitlines():
        if match := re.match(r" {4}(\w+): (.*)", line):
            name, meanings[match[1]] = match[1], match[2]
        elif name and line.startswith(" " * 8):
            meanings[name] += f" {line.strip()}"
        elif line.strip():
            break
    return meanings


def import_named(given: str) -> Any:
    """Return what is called `module:Name` in a module that Python finds, such as a file in the current folder.

    Args:
        given: Module and name.

    Returns:
        Whatever has the name.

    Raises:
        GatewiseError: There is no such module or name.
    """
    module_name, _, name = given.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a file beside the user, as `python -m` finds it
    try:
        return getattr(import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise GatewiseError(f"{given!r} cannot be imported: {error}. Write it as module:Name.") from error


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """Split `int | None` into None, int: None first, so that `none` means None also where any text would do."""
    if get_origin(kind) not in (Union, types.UnionType):
        return (kind,)
    return tuple(sorted(get_args(kind), key=lambda member: member is not type(None)))


def _is_own(kind: Any) -> bool:
    """True for a class that no text means: values are given as they are, or named as `module:Name`."""
    return isinstance(kind, type) and kind not in _PARSERS


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(str(choice) for choice in get_args(kind))
    if len(_alternatives(kind)) > 1:
        members = sorted(_alternatives(kind), key=lambda member: member is type(None))
        return " or ".join(_describe(member) for member in members)
    return f"a {kind.__name__} (module:NAME)" if _is_own(kind) else _NAMES.get(kind, str(kind))
