"""Tasks: pairs of prompts with correct and incorrect answers, built in or from a user's file.

What needs torch is imported when it is asked for, since the list of tasks does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gatewise._lazy import imported_when_used

if TYPE_CHECKING:
    from gatewise.tasks.builder import Task, task
    from gatewise.tasks.pairs import Pairs

__all__ = ["Pairs", "Task", "task"]

__getattr__ = imported_when_used(__name__, {"builder": "Task task", "pairs": "Pairs"})
