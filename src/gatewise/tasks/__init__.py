"""Tasks: pairs of prompts with right and wrong answers, built in or from a user's file."""

from gatewise.tasks.encoder import tokenizer_fingerprint
from gatewise.tasks.pairs import Pairs
from gatewise.tasks.task import RECIPES, Task, task

__all__ = ["RECIPES", "Pairs", "Task", "task", "tokenizer_fingerprint"]
