"""Example prompts with probabilities: the model on both sides, and each circuit on the clean side."""

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
    """What one run says: probabilities of correct and incorrect answers, and the likeliest tokens."""

    correct: float
    incorrect: float
    top: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class ShownExample:
    """One pair, and what the model and the circuits say."""

    clean: str
    corrupted: str
    correct: tuple[str, ...]
    incorrect: tuple[str, ...]
    answers: Mapping[str, Answer]  # "clean" and "corrupted": the whole model; else a circuit on the clean prompt


def shown_examples(
    model: Model, pairs: Pairs, circuits: Mapping[str, Circuit], *, compute: Compute | None = None
) -> tuple[ShownExample, ...]:
    """Run the model and the circuits on these pairs."""
    setting = Setting.of(model, pairs, compute=compute)
    by_circuit = run_circuits(model, setting, list(circuits.values()))
    whole = [setting.runs(batch) for batch in setting.batches()]  # as the circuits had them
    runs: dict[str, Tensor] = {side: torch.cat([getattr(both, side).logits for both in whole]) for side in SIDES}
    runs |= zip(circuits, by_circuit, strict=True)
    probabilities = {name: logits.double().softmax(dim=-1).cpu() for name, logits in runs.items()}
    shown = []
    for i in range(len(pairs)):
        correct, incorrect = (answers[answers >= 0].tolist() for answers in (pairs.correct[i], pairs.incorrect[i]))
        shown.append(
            ShownExample(
                _prompt(model, pairs.clean_text, pairs.clean, pairs.lengths, i),
                _prompt(model, pairs.corrupted_text, pairs.corrupted, pairs.lengths, i),
                tuple(token_text(model, token) for token in correct),
                tuple(token_text(model, token) for token in incorrect),
                {name: _answer(model, values[i], correct, incorrect) for name, values in probabilities.items()},
            )
        )
    return tuple(shown)


def _answer(model: Model, probabilities: Tensor, correct: list[int], incorrect: list[int]) -> Answer:
    values, tokens = probabilities.topk(min(_TOP, len(probabilities)))
    top = tuple(
        (token_text(model, token), value) for token, value in zip(tokens.tolist(), values.tolist(), strict=True)
    )
    return Answer(float(probabilities[correct].sum()), float(probabilities[incorrect].sum()), top)


def _prompt(model: Model, texts: tuple[str, ...], tokens: Tensor, lengths: Tensor, row: int) -> str:
    """The prompt as it was given, or else its tokens."""
    if texts:
        return texts[row]
    return " ".join(token_text(model, token) for token in tokens[row, -int(lengths[row]) :].tolist())


def token_text(model: Model, token: int) -> str:
    """A token as people read it, or its number if there is no tokenizer."""
    return f"#{token}" if model.tokenizer is None else str(model.tokenizer.decode([token]))
