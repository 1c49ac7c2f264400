"""The full name of a task: `ioi`, or `ioi:corruption=all-names,held_out=templates` with the options that are not usual.

One text says which pairs are meant on the command line, in a sweep's grid, in a preset and in a stored result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gatewise.errors import GatewiseError

Choices = Mapping[str, tuple[str, ...]]  # what each option may be; the default comes first
_FULL_NAME = re.compile(r"(?P<name>.+?):(?P<options>\w+=[\w-]*(,\w+=[\w-]*)*)")


def parse_name(text: str) -> tuple[str, dict[str, str]]:
    """The task and the options in a full name."""
    found = _FULL_NAME.fullmatch(text)
    if found is None:
        return text, {}
    parts = [part.partition("=") for part in found["options"].split(",")]
    return found["name"], {option: value for option, _, value in parts}


def full_name(name: str, options: Mapping[str, str], choices: Choices) -> str:
    """The name by which a task with these options can be asked for again."""
    unusual = [f"{option}={options[option]}" for option, values in choices.items() if options[option] != values[0]]
    return f"{name}:{','.join(unusual)}" if unusual else name


def chosen(name: str, options: Mapping[str, str], choices: Choices) -> dict[str, str]:
    """A value for every option, or an error that lists what there is."""
    for option, value in options.items():
        if option not in choices:
            known = ", ".join(f"{known} ({_or(values)})" for known, values in choices.items())
            raise GatewiseError(f"{name} has no option {option!r}; its options are {known}.")
        if value not in choices[option]:
            raise GatewiseError(f"{name}: {option} is {_or(choices[option])}, got {value!r}.")
    return {option: options.get(option, values[0]) for option, values in choices.items()}


def _or(values: tuple[str, ...]) -> str:
    return " or ".join(values)
