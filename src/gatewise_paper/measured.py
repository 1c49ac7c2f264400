"""What was measured, sorted: by the kind of its keys, by their fields, by task and seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from gatewise_paper.naming import task_name

Measured = Mapping[Any, Any]  # what was measured, by key, in the order of the experiment
Value = TypeVar("Value")
Seeds = Mapping[tuple[str, str], Sequence[Value]]  # by task and method: what was measured for each seed


def of_kind(measured: Measured, kind: type) -> dict[Any, Any]:
    """What was measured under keys of one kind."""
    return {key: value for key, value in measured.items() if isinstance(key, kind)}


def group(measured: Mapping[Any, Value], *fields: str) -> dict[Any, list[Value]]:
    """Values by fields of their keys (by a tuple of them if there are several), in the order of measuring."""
    groups: dict[Any, list[Value]] = {}
    for key, value in measured.items():
        name = tuple(getattr(key, field) for field in fields)
        groups.setdefault(name if len(fields) > 1 else name[0], []).append(value)
    return groups


def values_by_task(seeds: Seeds[Value], method: str, value: Callable[[str, Value], float]) -> dict[str, list[float]]:
    """A claim's values for one method: for each task it was run on, one number for each seed.

    value: makes a number of a task and what was measured for a seed.
    """
    return {
        task_name(task): [value(task, measured) for measured in of_seeds]
        for (task, name), of_seeds in seeds.items()
        if name == method
    }
