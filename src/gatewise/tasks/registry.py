"""The built-in tasks and what can be chosen of them. A new one is a file with a `RECIPE`, and its name here."""

from __future__ import annotations

import itertools
from pathlib import Path

from gatewise.errors import GatewiseError
from gatewise.tasks import gt, ioi, sa, task_files
from gatewise.tasks._recipe import Recipe
from gatewise.tasks.example import DIFFERENCES
from gatewise.tasks.task_names import Choices, full_name

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (ioi.RECIPE, gt.RECIPE, sa.RECIPE)}


def options_of(name: str) -> Choices:
    """What can be chosen of a task: for each option its values, the default first."""
    recipe = RECIPES.get(name)
    if recipe is None and Path(name).suffix.lower() not in task_files.SUFFIXES:
        raise GatewiseError(
            f"there is no task {name!r}. The tasks are {', '.join(RECIPES)}; "
            f"your own is the path of a file that ends in .csv or .jsonl."
        )
    own = {} if recipe is None else recipe.options
    held_out = {"held_out": ("prompts", "templates")} if recipe is not None and recipe.templates else {}
    return {**own, **held_out, "difference": DIFFERENCES}


def every_form() -> list[str]:
    """The full names of the built-in tasks with all combinations of their options."""
    return [
        full_name(name, dict(zip(options_of(name), values, strict=True)), options_of(name))
        for name in RECIPES
        for values in itertools.product(*options_of(name).values())
    ]
