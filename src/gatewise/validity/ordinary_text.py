"""Ordinary text: plain sentences that come with the package, as pairs that no task is about.

A sentence is patched with another one of equal token length: sentences are sorted by length, neighbours are paired, and
the longer one is cut at its end. The last token that is left is the correct answer; what counts is the KL at the
position before it.
"""

from __future__ import annotations

from importlib.resources import files

from gatewise.models.model import Model
from gatewise.tasks.builder import encoder_of
from gatewise.tasks.encoding import tokenizer_fingerprint
from gatewise.tasks.pairs import Pairs

NAME = "text"
_FEWEST = 4  # pairs that a column needs


def ordinary_sentences() -> tuple[str, ...]:
    """List the sentences that come with the package.

    Returns:
        Short English sentences, written for gatewise.
    """
    text = (files("gatewise.validity") / "plain_sentences.txt").read_text(encoding="utf-8")
    return tuple(line for line in text.splitlines() if line)


def text_pairs(model: Model) -> Pairs | None:
    """Make pairs of ordinary sentences for a model.

    Args:
        model: Whose tokenizer cuts the sentences.

    Returns:
        Two pairs of every two sentences of like length; None if the model has no tokenizer, or knows too few of the
        words. Sentences with words that are not in its vocabulary are left out.
    """
    if model.tokenizer is None:
        return None
    encoder = encoder_of(model, None)
    tokenised = [ids for ids in encoder.tokens(ordinary_sentences()) if encoder.knows(ids) and len(ids) > 3]
    tokenised.sort(key=lambda ids: (len(ids), ids))
    start = [int(encoder.tokenizer.bos_token_id)] if encoder.bos else []
    clean, corrupted, correct, incorrect = [], [], [], []
    for first, second in zip(tokenised[::2], tokenised[1::2], strict=False):
        last = min(len(first), len(second)) - 2  # without the full stop
        for ours, others in ((first, second), (second, first)):
            if ours[last] == others[last] or ours[:last] == others[:last]:
                continue
            clean.append(start + ours[:last])
            corrupted.append(start + others[:last])
            correct.append(ours[last])
            incorrect.append(others[last])
    if len(clean) < _FEWEST:
        return None
    texts = [[encoder.tokenizer.decode(ids) for ids in side] for side in (clean, corrupted)]
    return Pairs.from_tokens(
        clean,
        corrupted,
        correct,
        incorrect,
        name=NAME,
        clean_text=texts[0],
        corrupted_text=texts[1],
        vocabulary=tokenizer_fingerprint(encoder.tokenizer),
    )
