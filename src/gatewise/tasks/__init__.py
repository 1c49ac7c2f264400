"""Tasks: pairs of prompts with right and wrong answers, built in or from a user's file."""

from gatewise.tasks.catalogue import RECIPES, Task, every_form, options_of, task
from gatewise.tasks.encoder import tokenizer_fingerprint
from gatewise.tasks.pairs import Pairs

__all__ = ["RECIPES", "Pairs", "Task", "every_form", "options_of", "task", "tokenizer_fingerprint"]
