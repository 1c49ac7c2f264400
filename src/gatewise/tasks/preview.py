"""Pairs as a person wants to see them: prompts, answers, and what a model makes of both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from gatewise.tasks.pairs import Pairs

if TYPE_CHECKING:
    from gatewise.models.model import Model


@dataclass(frozen=True)
class Preview:
    """One pair, with the total probability of its right and of its wrong answers on both sides."""

    clean: str
    corrupted: str
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    right_on_clean: float
    wrong_on_clean: float
    right_on_corrupted: float
    wrong_on_corrupted: float


def preview(model: Model, pairs: Pairs) -> list[Preview]:
    """Run the model on both sides of the pairs and read off the answers' probabilities."""
    from gatewise.engine import last_logits

    clean = last_logits(model, pairs, side="clean").float().softmax(dim=-1).cpu()
    corrupted = last_logits(model, pairs, side="corrupted").float().softmax(dim=-1).cpu()
    shown = []
    for i, (clean_text, corrupted_text) in enumerate(zip(pairs.clean_text, pairs.corrupted_text, strict=True)):
        right, wrong = _real(pairs.right[i]), _real(pairs.wrong[i])
        sums = [side[i, answers].sum().item() for side in (clean, corrupted) for answers in (right, wrong)]
        texts = [tuple(model.tokenizer.decode([token]) for token in answers.tolist()) for answers in (right, wrong)]
        shown.append(Preview(clean_text, corrupted_text, texts[0], texts[1], *sums))
    return shown


def _real(answers: Tensor) -> Tensor:
    return answers[answers >= 0]
