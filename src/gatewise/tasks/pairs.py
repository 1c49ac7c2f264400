"""Pairs: what every method and measure works on. Token ids, and the text they were made from for people to read.

A pair is a clean prompt, a corrupted prompt of the same token length, and the token ids that count as right and
incorrect answers on the clean side. Prompts of different pairs may differ in length: they are stored left-padded, so
that the answer position is the last column of every row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from torch import Tensor

from gatewise.display import card
from gatewise.errors import GatewiseError
from gatewise.tasks.example import DIFFERENCES, Difference, Example

if TYPE_CHECKING:
    from gatewise.tasks.catalogue import Reader

_SHOWN = 4  # examples in a notebook
_NO_TOKEN = -1  # fills up ragged answer lists


@dataclass(frozen=True, eq=False)
class Pairs:
    """Prompts in two versions, with correct and incorrect answers. Immutable."""

    clean: Tensor  # [example, position], left-padded with 0
    corrupted: Tensor  # [example, position]
    lengths: Tensor  # [example], tokens without padding
    correct: Tensor  # [example, answer], padded with -1
    incorrect: Tensor  # [example, answer]
    difference: Difference = "logit"
    name: str = "pairs"
    clean_text: tuple[str, ...] = field(default=(), repr=False)
    corrupted_text: tuple[str, ...] = field(default=(), repr=False)
    vocabulary: str = ""  # fingerprint of the tokenizer the ids belong to; "" if the user brought ids
    templates: tuple[str, ...] = field(default=(), repr=False)  # of each pair; pairs of one are not independent
    answer_text: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = field(default=(), repr=False)  # right, wrong

    @classmethod
    def from_text(
        cls,
        data: Any,
        model: Reader,
        *,
        difference: Difference = "logit",
        name: str = "pairs",
        bos: bool | None = None,
        first_token: bool = False,
    ) -> Pairs:
        """Make pairs from text: a list of dicts or tuples, a dict of lists, a pandas frame, or a split of a dataset.

        The columns are clean, corrupted, correct and incorrect, in any case; others are ignored. All else is as for
        `gw.task`, which also divides pairs into a part to search on and a part to test on.
        """
        from gatewise.tasks.catalogue import pairs_from_text

        return pairs_from_text(data, model, difference=difference, name=name, bos=bos, first_token=first_token)

    @classmethod
    def from_tokens(
        cls,
        clean: Sequence[Sequence[int]] | Tensor,
        corrupted: Sequence[Sequence[int]] | Tensor,
        correct: Sequence[int | Sequence[int]],
        incorrect: Sequence[int | Sequence[int]],
        *,
        difference: Difference = "logit",
        name: str = "pairs",
        clean_text: Sequence[str] = (),
        corrupted_text: Sequence[str] = (),
        vocabulary: str = "",
        templates: Sequence[str] = (),
        answer_text: Sequence[tuple[tuple[str, ...], tuple[str, ...]]] = (),
    ) -> Pairs:
        """Make pairs from token ids. An answer is one token id, or a list of ids any of which counts."""
        clean_rows, corrupted_rows = list(clean), list(corrupted)
        counts = {len(clean_rows), len(corrupted_rows), len(correct), len(incorrect)}
        if len(counts) > 1 or not clean_rows:
            raise GatewiseError(
                f"pairs need equally many clean prompts, corrupted prompts, correct and incorrect answers (at least "
                f"one); "
                f"got {len(clean_rows)}, {len(corrupted_rows)}, {len(correct)} and {len(incorrect)}."
            )
        if difference not in DIFFERENCES:
            raise GatewiseError(f"difference is 'logit' or 'probability', got {difference!r}.")
        for i, (a, b) in enumerate(zip(clean_rows, corrupted_rows, strict=True)):
            if len(a) != len(b) or len(a) == 0:
                raise GatewiseError(
                    f"pair {i}: the clean prompt has {len(a)} tokens and the corrupted one {len(b)}; "
                    f"both need the same number, at least one. Choose a corruption of equal token length."
                )
        return cls(
            clean=_left_padded(clean_rows),
            corrupted=_left_padded(corrupted_rows),
            lengths=torch.tensor([len(r) for r in clean_rows]),
            correct=_answers(correct, "correct"),
            incorrect=_answers(incorrect, "incorrect"),
            difference=difference,
            name=name,
            clean_text=tuple(clean_text),
            corrupted_text=tuple(corrupted_text),
            vocabulary=vocabulary,
            templates=tuple(templates),
            answer_text=tuple(answer_text),
        )

    def __len__(self) -> int:
        return self.clean.shape[0]

    @overload
    def __getitem__(self, rows: int) -> Example: ...
    @overload
    def __getitem__(self, rows: slice) -> Pairs: ...
    def __getitem__(self, rows: int | slice) -> Example | Pairs:
        """One example as text (as token ids if there is no text), or the pairs of a slice."""
        if isinstance(rows, int):
            return self._example(range(len(self))[rows])
        if not isinstance(rows, slice):
            raise GatewiseError(f"pairs are numbered and sliced, as in pairs[0] and pairs[:8]; got {rows!r}.")
        lengths = self.lengths[rows]
        if len(lengths) == 0:
            raise GatewiseError(f"pairs[{rows.start}:{rows.stop}] is empty; there are {len(self)} pairs.")
        width = int(lengths.max())
        return replace(
            self,
            clean=self.clean[rows, -width:],
            corrupted=self.corrupted[rows, -width:],
            lengths=lengths,
            correct=self.correct[rows],
            incorrect=self.incorrect[rows],
            clean_text=self.clean_text[rows],
            corrupted_text=self.corrupted_text[rows],
            templates=self.templates[rows],
            answer_text=self.answer_text[rows],
        )

    def __iter__(self) -> Iterator[Example]:
        """The examples as text."""
        return (self._example(row) for row in range(len(self)))

    def _example(self, row: int) -> Example:
        correct, incorrect = (
            self.answer_text[row] if self.answer_text else (_ids(self.correct[row]), _ids(self.incorrect[row]))
        )
        template = self.templates[row] if self.templates else ""
        if self.clean_text:
            return Example(self.clean_text[row], self.corrupted_text[row], correct, incorrect, template)
        start = self.width - int(self.lengths[row])
        clean, corrupted = (" ".join(_ids(side[row, start:])) for side in (self.clean, self.corrupted))
        return Example(clean, corrupted, correct, incorrect, template)

    def swapped(self) -> Pairs:
        """Clean and corrupted exchanged; correct and incorrect kept, so that the logit difference means the same."""
        return replace(
            self,
            clean=self.corrupted,
            corrupted=self.clean,
            clean_text=self.corrupted_text,
            corrupted_text=self.clean_text,
        )

    def begins_with(self, token: int | None) -> bool:
        """Whether all prompts begin with this token, if there is one."""
        firsts = self.clean[torch.arange(len(self)), self.width - self.lengths]
        return token is not None and bool((firsts == token).all())

    @property
    def width(self) -> int:
        """Tokens of the longest prompt."""
        return self.clean.shape[1]

    @property
    def first_difference(self) -> Tensor:
        """Column at which each pair's two prompts first differ. [example]; the width if they never do."""
        differs = self.clean != self.corrupted
        first = differs.int().argmax(dim=1)
        return torch.where(differs.any(dim=1), first, self.width)

    @property
    def fingerprint(self) -> str:
        """A hash of everything that determines a number computed from these pairs."""
        digest = hashlib.sha256()
        for part in (self.clean, self.corrupted, self.lengths, self.correct, self.incorrect):
            digest.update(str(tuple(part.shape)).encode())
            digest.update(part.contiguous().numpy().tobytes())
        digest.update(self.difference.encode())
        if self.difference == "logit" and max(self.correct.shape[1], self.incorrect.shape[1]) > 1:
            digest.update(b"log-sum-exp")  # once it was a mean of logits
        return digest.hexdigest()[:16]

    def logit_diff(self, logits: Tensor) -> Tensor:
        """How much right leads over wrong, per example; differentiable. logits: [..., example, vocabulary].

        `logit`: logit of the correct answer minus logit of the incorrect one; of several, the log of the sum of
        exponentials. `probability`: total probability of the correct answers minus that of the incorrect ones.
        """
        if self.difference == "probability":
            probabilities = logits.softmax(dim=-1)
            return _gather(probabilities, self.correct, 0.0).sum(-1) - _gather(probabilities, self.incorrect, 0.0).sum(
                -1
            )
        correct, incorrect = (_gather(logits, answers, -torch.inf) for answers in (self.correct, self.incorrect))
        return correct.logsumexp(-1) - incorrect.logsumexp(-1)

    def pairwise_accuracy(self, logits: Tensor) -> Tensor:
        """Accuracy, first definition: the logit difference is positive. [..., example] of bool."""
        return self.logit_diff(logits) > 0

    def top1_accuracy(self, logits: Tensor) -> Tensor:
        """Accuracy, second definition: the arg-max over the whole vocabulary is a correct answer."""
        return (logits.argmax(dim=-1)[..., None] == self.correct.to(logits.device)).any(dim=-1)

    def __repr__(self) -> str:
        example = f", e.g. {self.clean_text[0]!r}" if self.clean_text else ""
        return f"<Pairs {self.name}: {len(self)} examples of up to {self.width} tokens{example}>"

    def _repr_html_(self) -> str:
        summary = f"{self.name}: {len(self)} examples of up to {self.width} tokens, {self.difference} logit difference"
        texts = zip(self.clean_text[:_SHOWN], self.corrupted_text[:_SHOWN], strict=False)
        return card("Pairs", summary, ("clean", "corrupted"), texts)


def _ids(tokens: Tensor) -> tuple[str, ...]:
    return tuple(f"#{token}" for token in tokens.tolist() if token != _NO_TOKEN)


def _left_padded(rows: Sequence[Sequence[int] | Tensor]) -> Tensor:
    found = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)  # row by row: lists of thousands would be large
    for i, row in enumerate(rows):
        found[i, -len(row) :] = row
    return torch.from_numpy(found)


def _answers(answers: Sequence[int | Sequence[int]], side: str) -> Tensor:
    lists = [[int(token) for token in torch.as_tensor(answer).reshape(-1)] for answer in answers]
    for i, answer in enumerate(lists):
        if not answer or min(answer) < 0:
            raise GatewiseError(f"pair {i}: the {side} answer needs at least one token id >= 0, got {answer}.")
    width = max(map(len, lists))
    return torch.tensor([answer + [_NO_TOKEN] * (width - len(answer)) for answer in lists])


def _gather(values: Tensor, answers: Tensor, none: float) -> Tensor:
    """values [..., example, vocabulary] at answers [example, answer]; `none` where there is none."""
    answers = answers.to(values.device)
    index = answers.clamp(min=0).expand(*values.shape[:-1], answers.shape[1])
    return values.gather(-1, index).masked_fill(answers == _NO_TOKEN, none)
