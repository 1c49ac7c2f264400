"""Example prompts with probabilities: the model on both sides, and circuits on the clean side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.engine.running import run_circuits
from gatewise.engine.setting import SIDES, Setting
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs

_TOP = 3


@dataclass(frozen=True)
class Answer:
    """Probabilities of the correct and the incorrect answers in one run, and the likeliest tokens."""

    correct: float
    incorrect: float
    top: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class ShownExample:
    """One pair as text, and what the model and the circuits answer."""

    clean: str
    corrupted: str
    correct: tuple[str, ...]
    incorrect: tuple[str, ...]
    answers: Mapping[str, Answer]  # "clean" and "corrupted": the whole model; else a circuit on the clean prompt


def shown_examples(
    model: Model, pairs: Pairs, circuits: Mapping[str, Circuit] | None = None, *, compute: Compute | None = None
) -> tuple[ShownExample, ...]:
    """Run the model on both sides of pairs, and circuits on the clean side; circuits by name."""
    setting, circuits = Setting.of(model, pairs, compute=compute), circuits or {}
    of_circuits = run_circuits(model, setting, list(circuits.values()))
    runs = [setting.runs(batch) for batch in setting.batches()]  # those that the circuits were run on
    logits: dict[str, Tensor] = {side: torch.cat([getattr(both, side).logits for both in runs]) for side in SIDES}
    logits |= zip(circuits, of_circuits, strict=True)
    probabilities = {name: values.cpu().double().softmax(dim=-1) for name, values in logits.items()}
    shown = []
    for row in range(len(pairs)):
        correct, incorrect = (answers[answers >= 0] for answers in (pairs.correct[row], pairs.incorrect[row]))
        answers = {name: _answer(model, values[row], correct, incorrect) for name, values in probabilities.items()}
        clean, corrupted = _prompts(model, pairs, row)
        shown.append(
            ShownExample(clean, corrupted, token_texts(model, correct), token_texts(model, incorrect), answers)
        )
    return tuple(shown)


def _prompts(model: Model, pairs: Pairs, row: int) -> tuple[str, str]:
    """Both prompts as they were given, or else their tokens."""
    if pairs.clean_text:
        return pairs.clean_text[row], pairs.corrupted_text[row]
    start = pairs.width - int(pairs.lengths[row])
    clean, corrupted = (" ".join(token_texts(model, side[row, start:])) for side in (pairs.clean, pairs.corrupted))
    return clean, corrupted


def _answer(model: Model, probabilities: Tensor, correct: Tensor, incorrect: Tensor) -> Answer:
    values, tokens = probabilities.topk(min(_TOP, len(probabilities)))
    top = tuple(zip(token_texts(model, tokens), values.tolist(), strict=True))
    return Answer(float(probabilities[correct].sum()), float(probabilities[incorrect].sum()), top)


def token_texts(model: Model, tokens: Tensor) -> tuple[str, ...]:
    """Tokens as people read them, or their numbers if there is no tokenizer."""
    if model.tokenizer is None:
        return tuple(f"#{token}" for token in tokens.tolist())
    return tuple(str(model.tokenizer.decode([token])) for token in tokens.tolist())
