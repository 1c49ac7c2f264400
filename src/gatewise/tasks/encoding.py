"""From text to token ids, checked. The only place in tasks that calls a tokenizer.

An answer's tokens are those that it adds to its prompt: prompt and answer are tokenised together, and the result
must begin with the tokens of the prompt alone. That holds for byte-level, sentencepiece-like and word-level
vocabularies without knowing which one it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from gatewise.errors import GatewiseError
from gatewise.tasks.example import Example, TokenExample

if TYPE_CHECKING:  # transformers takes a second to import, and only models need it
    from transformers import PreTrainedTokenizerBase

_fingerprints: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[int, str]] = WeakKeyDictionary()


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of the vocabulary: equal if and only if token ids mean the same pieces."""
    size, fingerprint = _fingerprints.get(tokenizer, (-1, ""))
    if size != len(tokenizer):  # tokens added since the last call change the meaning of ids
        lines = (f"{token_id}\t{piece}\n" for piece, token_id in sorted(tokenizer.get_vocab().items()))
        fingerprint = hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        _fingerprints[tokenizer] = (len(tokenizer), fingerprint)
    return fingerprint


class Encoder:
    """A tokenizer, whether prompts begin with its BOS token, and the longest prompt the model can read."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, bos: bool | None = None, longest: int | None = None) -> None:
        """`bos=None`: do what the tokenizer does by default. `longest=None`: any length, BOS included."""
        if bos and tokenizer.bos_token_id is None:
            raise GatewiseError("bos=True needs a tokenizer with a BOS token, and this one has none. Pass bos=False.")
        self.tokenizer = tokenizer
        self.bos = adds_bos(tokenizer) if bos is None else bos
        self.longest = longest

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens."""
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids

    def continuations(self, prompt: str, answers: Sequence[str]) -> list[list[int] | None]:
        """Return the tokens each answer adds to the prompt; None if it changes the prompt's own tokens or adds none."""
        start, *both = self.tokens([prompt, *(prompt + answer for answer in answers)])
        size = len(start)
        return [ids[size:] if ids[:size] == start and len(ids) > size else None for ids in both]

    def single_tokens(self, words: Sequence[str], prompt: str = "They met") -> list[str]:
        """Return the words that are one known token after a prompt. Each word brings its own leading space."""
        added = self.continuations(prompt, words)
        return [word for word, ids in zip(words, added, strict=True) if ids and len(ids) == 1 and self.knows(ids)]

    def encode(self, example: Example, *, first_token: bool = False) -> TokenExample:
        """Return the token ids of an example, or raise an error that says what is wrong with it."""
        clean, corrupted = self.tokens([example.clean, example.corrupted])
        for side, text, ids in (("clean", example.clean, clean), ("corrupted", example.corrupted, corrupted)):
            if not ids:
                raise GatewiseError(f"the {side} prompt {text!r} has no tokens; write a prompt of at least one word.")
            self._require_known(f"the {side} prompt {text!r}", ids)
        if len(clean) != len(corrupted):
            raise GatewiseError(
                f"the clean prompt has {len(clean)} tokens and the corrupted one {len(corrupted)} "
                f"({self._pieces(clean)} and {self._pieces(corrupted)}); both need the same number. "
                f"Replace words by words of equal token length."
            )
        if self.longest is not None and len(clean) + self.bos > self.longest:
            raise GatewiseError(
                f"the prompts have {len(clean) + self.bos} tokens, BOS included; the model reads at most "
                f"{self.longest}. Shorten them."
            )
        correct = self._answers(example.clean, example.correct, "correct", first_token)
        incorrect = self._answers(example.clean, example.incorrect, "incorrect", first_token)
        if shared := set(correct) & set(incorrect):
            raise GatewiseError(
                f"correct and incorrect share the token {self.tokenizer.decode(sorted(shared)[:1])!r}; "
                f"an answer cannot be both. Remove it from one side."
            )
        start = [int(self.tokenizer.bos_token_id)] if self.bos else []
        return TokenExample(example, start + clean, start + corrupted, correct, incorrect)

    def _answers(self, prompt: str, answers: tuple[str, ...], side: str, first_token: bool) -> list[int]:
        ids: list[int] = []
        for answer, added in zip(answers, self.continuations(prompt, answers), strict=True):
            if added is None:
                raise GatewiseError(
                    f"the {side} answer {answer!r} cannot follow the prompt {prompt!r}: tokenised together, the "
                    f"prompt's own tokens change. Write a space before the answer rather than at the prompt's end."
                )
            if len(added) > 1 and not first_token:
                raise GatewiseError(
                    f"the {side} answer {answer!r} is {len(added)} tokens, {self._pieces(added)}; an answer is one "
                    f"token. Choose another word, or pass first_token=True (--first-token) to compare first tokens."
                )
            self._require_known(f"the {side} answer {answer!r}", added[:1])
            ids.append(added[0])
        return list(dict.fromkeys(ids))

    def knows(self, ids: Sequence[int]) -> bool:
        """Tell whether all tokens are in the vocabulary."""
        return self.tokenizer.unk_token_id is None or self.tokenizer.unk_token_id not in ids

    def _require_known(self, what: str, ids: Sequence[int]) -> None:
        if not self.knows(ids):
            raise GatewiseError(
                f"{what} has words that are not in the model's vocabulary of {len(self.tokenizer)} pieces. "
                f"Use other words, or a model with an open vocabulary."
            )

    def _pieces(self, ids: Sequence[int]) -> str:
        return " | ".join(self.tokenizer.decode([token]) for token in ids)


def adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer by itself begins a text with its BOS token."""
    if tokenizer.bos_token_id is None:
        return False
    ids: list[int] = tokenizer("word")["input_ids"]
    return bool(ids) and ids[0] == tokenizer.bos_token_id
