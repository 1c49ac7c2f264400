"""The built-in tasks, what can be chosen of each, and the names that say so. A new one is a file with a `RECIPE`.

A full name says which pairs are meant, on the command line, in a sweep's grid, in a preset and in a stored result:
`ioi`, or `ioi:corruption=all-names,held_out=templates` with the options that differ from the default.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path

from gatewise.errors import GatewiseError, suggestion
from gatewise.tasks import gt, ioi, sa, task_files
from gatewise.tasks._recipe import Recipe
from gatewise.tasks.example import DIFFERENCES
from gatewise.tasks.splitting import SPLITS

Choices = Mapping[str, tuple[str, ...]]  # what each option may be; the default comes first
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (ioi.RECIPE, gt.RECIPE, sa.RECIPE)}
_FULL_NAME = re.compile(r"(?P<name>.+?):(?P<options>\w+=[\w-]*(,\w+=[\w-]*)*)")


def task_options(name: str) -> Choices:
    """Return what can be chosen of a task: for each option its values, the default first."""
    recipe = RECIPES.get(name)
    if recipe is None and Path(name).suffix.lower() not in task_files.SUFFIXES:
        raise GatewiseError(
            f"there is no task {name!r}.{suggestion(name, RECIPES)} The tasks are {', '.join(RECIPES)}; "
            f"your own is the path of a file that ends in .csv or .jsonl."
        )
    choices: dict[str, tuple[str, ...]] = dict(recipe.options) if recipe is not None else {"split": SPLITS}
    if recipe is not None and recipe.templates:
        choices["held_out"] = ("prompts", "templates")
    return {**choices, "difference": DIFFERENCES}


def all_task_names() -> list[str]:
    """Return the full names of the built-in tasks with all combinations of their options."""
    names = []
    for name in RECIPES:
        choices = task_options(name)
        for values in itertools.product(*choices.values()):
            names.append(full_name(name, dict(zip(choices, values, strict=True)), choices))
    return names


def parse_name(text: str) -> tuple[str, dict[str, str]]:
    """Return the task and the options in a full name."""
    match = _FULL_NAME.fullmatch(text)
    if match is None:
        return text, {}
    parts = [part.partition("=") for part in match["options"].split(",")]
    return match["name"], {option: value for option, _, value in parts}


def full_name(name: str, options: Mapping[str, str], choices: Choices) -> str:
    """Return the name by which a task with these options can be asked for again."""
    unusual = [f"{option}={options[option]}" for option, values in choices.items() if options[option] != values[0]]
    return f"{name}:{','.join(unusual)}" if unusual else name


def complete_options(name: str, options: Mapping[str, str], choices: Choices) -> dict[str, str]:
    """Return a value for every option, or raise an error that lists what there is."""
    for option, value in options.items():
        if option not in choices:
            known = ", ".join(f"{known} ({' or '.join(values)})" for known, values in choices.items())
            raise GatewiseError(
                f"{name} has no option {option!r};{suggestion(option, choices)} its options are {known}."
            )
        if value not in choices[option]:
            raise GatewiseError(f"{name}: {option} is {' or '.join(choices[option])}, got {value!r}.")
    return {option: options.get(option, values[0]) for option, values in choices.items()}
