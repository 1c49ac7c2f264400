"""Pairs: what every method and measure works on. Token ids, and the text they were made from for people to read.

A pair is a clean prompt, a corrupted prompt of the same token length, and the token ids that count as correct and as
incorrect answers on the clean side. Prompts of different pairs may differ in length: they are stored left-padded, so
that the answer position is the last column of every row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from gatewise.display import card
from gatewise.errors import GatewiseError
from gatewise.tasks.example import DIFFERENCES, Difference, Example

if TYPE_CHECKING:
    from gatewise.tasks.builder import Reader

_SHOWN = 4  # examples in a notebook
_NO_TOKEN = -1  # fills up ragged answer lists
_Text = TypeVar("_Text")
_TENSORS = ("clean", "corrupted", "lengths", "correct", "incorrect")


@dataclass(frozen=True, eq=False)
class Pairs:
    """Prompts in two versions, with correct and incorrect answers. Immutable.

    Attributes:
        clean: Token ids of the clean prompts, left-padded with 0. [example, position]
        corrupted: Token ids of the corrupted prompts. [example, position]
        lengths: Number of tokens without padding. [example]
        correct: Token ids of the answers that are correct after the clean prompt, padded with -1. [example, answer]
        incorrect: Token ids of the answers that they are compared with. [example, answer]
        difference: What `logit_diff` compares: logits or probabilities.
        name: What the pairs are called.
        clean_text: The clean prompts; empty if the user brought token ids.
        corrupted_text: The corrupted prompts.
        vocabulary: Fingerprint of the tokenizer that the ids belong to; "" if the user brought ids.
        templates: Of each pair; pairs of one template are not independent.
        answer_text: Correct and incorrect answers of each pair.
    """

    clean: Tensor
    corrupted: Tensor
    lengths: Tensor
    correct: Tensor
    incorrect: Tensor
    difference: Difference = "logit"
    name: str = "pairs"
    clean_text: tuple[str, ...] = ()
    corrupted_text: tuple[str, ...] = ()
    vocabulary: str = ""
    templates: tuple[str, ...] = ()
    answer_text: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = ()

    @classmethod
    def from_text(
        cls,
        rows: Any,
        model: Reader,
        *,
        difference: Difference = "logit",
        name: str = "pairs",
        bos: bool | None = None,
        first_token: bool = False,
    ) -> Pairs:
        """Make pairs from text. `gw.task` does the same and divides pairs into a part to search on and one to test on.

        Args:
            rows: A list of dicts or tuples, a dict of lists, a pandas frame, or one split of a Hugging Face dataset,
                with the columns clean, corrupted, correct and incorrect, in any case; others are ignored.
            model: The model whose tokenizer reads the prompts.
            difference: What correct and incorrect answers are compared by, `logit` or `probability`.
            name: What the pairs are called.
            bos: Whether prompts begin with BOS; by default as the model needs it.
            first_token: Let answers be several tokens long, of which the first is compared.

        Returns:
            The pairs, in the order of the rows.

        Raises:
            GatewiseError: If a row cannot be read; all such rows are named.
        """
        from gatewise.tasks.builder import pairs_from_text

        return pairs_from_text(rows, model, difference=difference, name=name, bos=bos, first_token=first_token)

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
        """Make pairs from token ids.

        Args:
            clean: Token ids of each clean prompt, without padding.
            corrupted: Token ids of each corrupted prompt, as many as the clean one has.
            correct: For each pair one token id, or a list of ids any of which counts as correct.
            incorrect: The same for incorrect answers.
            difference: What they are compared by, `logit` or `probability`.
            name: What the pairs are called.
            clean_text: The clean prompts as text, for people.
            corrupted_text: The corrupted prompts as text.
            vocabulary: Fingerprint of the tokenizer, if models with another one are to be refused.
            templates: The template that each pair was made from.
            answer_text: Correct and incorrect answers of each pair as text.

        Returns:
            The pairs.

        Raises:
            GatewiseError: If numbers of prompts, answers or tokens do not match.
        """
        clean_rows, corrupted_rows = list(clean), list(corrupted)
        counts = {len(clean_rows), len(corrupted_rows), len(correct), len(incorrect)}
        if len(counts) > 1 or not clean_rows:
            raise GatewiseError(
                f"pairs need equally many clean prompts, corrupted prompts, correct and incorrect answers (at least "
                f"one); got {len(clean_rows)}, {len(corrupted_rows)}, {len(correct)} and {len(incorrect)}."
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
    def __getitem__(self, rows: slice | Sequence[int]) -> Pairs: ...
    def __getitem__(self, rows: int | slice | Sequence[int]) -> Example | Pairs:
        """Return one example as text (as token ids if there is no text), or the pairs of a slice or of some rows."""
        if isinstance(rows, int):
            return self._example(range(len(self))[rows])
        if isinstance(rows, slice):
            chosen = list(range(len(self))[rows])
            if not chosen:
                raise GatewiseError(f"pairs[{rows.start}:{rows.stop}] is empty; there are {len(self)} pairs.")
        elif isinstance(rows, list | tuple | range) and len(rows) and all(isinstance(row, int) for row in rows):
            chosen = [range(len(self))[row] for row in rows]
        else:
            raise GatewiseError(
                f"pairs are numbered and sliced, as in pairs[0], pairs[:8] and pairs[[0, 2]]; got {rows!r}."
            )
        lengths = self.lengths[chosen]
        width = int(lengths.max())
        return replace(
            self,
            clean=self.clean[chosen, -width:],
            corrupted=self.corrupted[chosen, -width:],
            lengths=lengths,
            correct=self.correct[chosen],
            incorrect=self.incorrect[chosen],
            clean_text=_rows(self.clean_text, chosen),
            corrupted_text=_rows(self.corrupted_text, chosen),
            templates=_rows(self.templates, chosen),
            answer_text=_rows(self.answer_text, chosen),
        )

    def __iter__(self) -> Iterator[Example]:
        """The examples as text."""
        return (self._example(row) for row in range(len(self)))

    def _example(self, row: int) -> Example:
        correct, incorrect = _ids(self.correct[row]), _ids(self.incorrect[row])
        if self.answer_text:
            correct, incorrect = self.answer_text[row]
        start = self.width - int(self.lengths[row])
        clean, corrupted = (" ".join(_ids(side[row, start:])) for side in (self.clean, self.corrupted))
        if self.clean_text:
            clean, corrupted = self.clean_text[row], self.corrupted_text[row]
        return Example(clean, corrupted, correct, incorrect, self.templates[row] if self.templates else "")

    def swapped(self) -> Pairs:
        """Exchange clean and corrupted prompts; answers stay, so that the logit difference means the same.

        Returns:
            The pairs with their prompts exchanged.
        """
        return replace(
            self,
            clean=self.corrupted,
            corrupted=self.clean,
            clean_text=self.corrupted_text,
            corrupted_text=self.clean_text,
        )

    def to(self, device: torch.device) -> Pairs:
        """Move token ids and answers to a device, once for all later calls.

        Args:
            device: Where logits of these pairs are; a user's metric gets the pairs there.

        Returns:
            The same pairs with all tensors on the device.
        """
        if device == self.clean.device:
            return self
        if device not in self._by_device:
            moved = {name: getattr(self, name).to(device) for name in _TENSORS}
            self._by_device[device] = replace(self, **moved)
        return self._by_device[device]

    @cached_property
    def _by_device(self) -> dict[torch.device, Pairs]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """For workers: without the copies on devices."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def begins_with(self, token: int | None) -> bool:
        """Tell whether all prompts begin with a token.

        Args:
            token: A token id, such as that of BOS; None is no token.

        Returns:
            True if all clean prompts begin with it.
        """
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
        for part in (getattr(self, name) for name in _TENSORS):
            digest.update(str(tuple(part.shape)).encode())
            digest.update(part.cpu().contiguous().numpy().tobytes())
        digest.update(self.difference.encode())
        if self.difference == "logit" and max(self.correct.shape[1], self.incorrect.shape[1]) > 1:
            digest.update(b"log-sum-exp")  # once it was a mean of logits
        return digest.hexdigest()[:16]

    def logit_diff(self, logits: Tensor) -> Tensor:
        """Measure how far correct answers lead over incorrect ones; differentiable.

        `logit`: logit of the correct answer minus logit of the incorrect one; of several, the log of the sum of
        exponentials. `probability`: total probability of the correct answers minus that of the incorrect ones.

        Args:
            logits: Of the last position. [..., example, vocabulary]

        Returns:
            The difference for each example. [..., example]
        """
        answers = self.to(logits.device)
        if self.difference == "probability":
            values = logits.softmax(dim=-1)
            return _gather(values, answers.correct, 0.0).sum(-1) - _gather(values, answers.incorrect, 0.0).sum(-1)
        correct, incorrect = (_gather(logits, tokens, -torch.inf) for tokens in (answers.correct, answers.incorrect))
        return _log_sum_exp(correct) - _log_sum_exp(incorrect)

    def pairwise_accuracy(self, logits: Tensor) -> Tensor:
        """Tell which examples have a positive logit difference.

        Args:
            logits: Of the last position. [..., example, vocabulary]

        Returns:
            Whether correct answers lead over incorrect ones. [..., example] of bool
        """
        return self.logit_diff(logits) > 0

    def top1_accuracy(self, logits: Tensor) -> Tensor:
        """Tell in which examples the most probable token of the whole vocabulary is a correct answer.

        Args:
            logits: Of the last position. [..., example, vocabulary]

        Returns:
            Whether it is. [..., example] of bool
        """
        return (logits.argmax(dim=-1)[..., None] == self.to(logits.device).correct).any(dim=-1)

    def __repr__(self) -> str:
        example = f", e.g. {self.clean_text[0]!r}" if self.clean_text else ""
        return f"<Pairs {self.name}: {len(self)} examples of up to {self.width} tokens{example}>"

    def _repr_html_(self) -> str:
        summary = f"{self.name}: {len(self)} examples of up to {self.width} tokens, {self.difference} difference"
        texts = zip(self.clean_text[:_SHOWN], self.corrupted_text[:_SHOWN], strict=False)
        return card("Pairs", summary, ("clean", "corrupted"), texts)


def _rows(texts: tuple[_Text, ...], rows: Sequence[int]) -> tuple[_Text, ...]:
    return tuple(texts[row] for row in rows) if texts else ()


def _ids(tokens: Tensor) -> tuple[str, ...]:
    return tuple(f"#{token}" for token in tokens.tolist() if token != _NO_TOKEN)


def _left_padded(rows: Sequence[Sequence[int] | Tensor]) -> Tensor:
    padded = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)  # row by row: nested lists would be large
    for i, row in enumerate(rows):
        padded[i, -len(row) :] = row
    return torch.from_numpy(padded)


def _answers(answers: Sequence[int | Sequence[int]], side: str) -> Tensor:
    lists = [[int(token) for token in torch.as_tensor(answer).reshape(-1)] for answer in answers]
    for i, answer in enumerate(lists):
        if not answer or min(answer) < 0:
            raise GatewiseError(f"pair {i}: the {side} answer needs at least one token id >= 0, got {answer}.")
    width = max(map(len, lists))
    return torch.tensor([answer + [_NO_TOKEN] * (width - len(answer)) for answer in lists])


def _log_sum_exp(logits: Tensor) -> Tensor:
    """Over the last dimension; of one logit it is that logit."""
    return logits[..., 0] if logits.shape[-1] == 1 else logits.logsumexp(-1)


def _gather(values: Tensor, answers: Tensor, none: float) -> Tensor:
    """values [..., example, vocabulary] at answers [example, answer]; `none` where there is none."""
    if answers.shape[1] == 1:  # of every example: none is filled up
        return values.gather(-1, answers.expand(*values.shape[:-1], 1))
    index = answers.clamp(min=0).expand(*values.shape[:-1], answers.shape[1])
    return values.gather(-1, index).masked_fill(answers == _NO_TOKEN, none)
