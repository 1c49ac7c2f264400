"""Tasks: pairs of prompts with correct and incorrect answers, built in or from a user's file.

What needs torch is imported when it is asked for, since the list of tasks does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise._lazy import imported_when_used
from gatewise.tasks.encoding import tokenizer_fingerprint
from gatewise.tasks.registry import RECIPES, every_form, options_of

if TYPE_CHECKING:
    from gatewise.tasks.catalogue import Task, task
    from gatewise.tasks.pairs import Pairs

__all__ = ["RECIPES", "Pairs", "Task", "every_form", "options_of", "task", "tokenizer_fingerprint"]

__getattr__ = imported_when_used(__name__, {"catalogue": "Task task", "pairs": "Pairs"})
