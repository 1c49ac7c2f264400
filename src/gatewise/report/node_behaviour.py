"""What nodes do on a few prompts, clean beside corrupted: where heads look, where it matters, which words they promote.

    worth       gbar . (clean - corrupted output), per position, in shares of the mean difference of the logit
    difference: what a
                node's change does on the logit difference to first order, on all ways to the output
                (`engine.receivers`)
    direct      what a node writes at the answer position, taken straight through the final norm (its factor held at the
                whole run's) and the unembedding: logits of words above the mean of all words
    looks       attention weights of a head, from the answer position and from the positions where its worth is largest

Only the nodes asked for are unembedded, one prompt after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from gatewise.engine.patching.node_patching import Receivers
from gatewise.engine.runs.activations import bases
from gatewise.engine.setting import SIDES, Batch, Setting, SideName
from gatewise.models.components import Attention, Norm
from gatewise.models.model import Model
from gatewise.report.prompts import token_text
from gatewise.tasks.pairs import Pairs

_WORDS = 5  # promoted by each node, per prompt and side
_ELSEWHERE = 2  # positions besides the answer's that a head is shown at
_NOTICEABLE = 0.1  # of a head's worth, summed without signs, that a position needs to be shown
_LEAST_WORTH = 0.005  # of the logit difference, that a position needs to be listed
_LEAST_LOOK = 0.01
_LISTED = 12  # entries of a row of attention, or positions of a worth
_LOGITS = 2**25  # entries of logits at a time

Words = tuple[tuple[str, float], ...]  # with their logits
Sparse = tuple[tuple[int, float], ...]  # (position, value), the largest first


@dataclass(frozen=True)
class ShownPrompt:
    """One pair as tokens."""

    clean: tuple[str, ...]
    corrupted: tuple[str, ...]
    correct: tuple[str, ...]
    incorrect: tuple[str, ...]


@dataclass(frozen=True)
class Look:
    """Where a head looks from one position."""

    position: int
    weights: Mapping[SideName, Sparse]


@dataclass(frozen=True)
class OnPrompt:
    """What a node does on one pair."""

    worth: Sparse
    correct: Mapping[SideName, float]  # direct effect on the right answers' logits, their mean
    incorrect: Mapping[SideName, float]
    promoted: Mapping[SideName, Words]  # the words that it pushes up most
    suppressed: Mapping[SideName, Words]  # down most
    looks: tuple[Look, ...]  # none for nodes that are no heads; the answer position first


@dataclass(frozen=True)
class ShownNodes:
    """Prompts, and what nodes do on each of them."""

    prompts: tuple[ShownPrompt, ...] = ()
    worth: Mapping[str, float] = field(default_factory=dict)  # over all positions, the mean of the prompts
    of: Mapping[str, tuple[OnPrompt, ...]] = field(default_factory=dict)


@torch.no_grad()
def shown_nodes(model: Model, pairs: Pairs, nodes: Sequence[str]) -> ShownNodes:
    """What these nodes do on these pairs. Nodes that write nothing (`logits`) are left out."""
    senders = [place for name in nodes if (place := model.graph.find_sender(name)) is not None]
    setting = Setting(model, pairs)
    on = [Receivers(setting, Batch(i, pairs[i : i + 1])) for i in range(len(pairs))]  # one by one: no padding
    total = torch.stack([one.total_effect.mean() for one in on]).mean()
    found = [_on_prompt(one, pairs[i : i + 1], senders, total) for i, one in enumerate(on)]
    names = [model.graph.senders[sender] for sender in senders]
    return ShownNodes(
        tuple(_prompt(model, pairs[i : i + 1]) for i in range(len(pairs))),
        {name: sum(float(worth[place].sum()) for worth, _ in found) / len(found) for place, name in enumerate(names)},
        {name: tuple(shown[place] for _, shown in found) for place, name in enumerate(names)},
    )


def _prompt(model: Model, pair: Pairs) -> ShownPrompt:
    def texts(tokens: Tensor) -> tuple[str, ...]:
        return tuple(token_text(model, token) for token in tokens[tokens >= 0].tolist())

    return ShownPrompt(texts(pair.clean[0]), texts(pair.corrupted[0]), texts(pair.correct[0]), texts(pair.incorrect[0]))


def _on_prompt(on: Receivers, pair: Pairs, senders: Sequence[int], total: Tensor) -> tuple[Tensor, list[OnPrompt]]:
    """Worth by position [node, window] and everything else, of one pair."""
    start = on.layout.start
    gradients = torch.stack([on.gradient(sender)[0] for sender in senders])
    worth = ((gradients * on.delta[senders, 0]).sum(dim=-1, dtype=torch.float64) / total).cpu()
    patterns = _patterns(on, {on.graph.sublayer_of_sender[sender] for sender in senders})
    direct = {side: _direct(on, pair, senders, side) for side in SIDES}
    shown = []
    for place, sender in enumerate(senders):
        sublayer = on.graph.sublayer_of_sender[sender]
        looks: tuple[Look, ...] = ()
        if sublayer in patterns:
            head = sender - on.graph.sender_slices[sublayer].start
            looks = _looks({side: patterns[sublayer][side][head] for side in SIDES}, worth[place], start)
        shown.append(
            OnPrompt(
                _sparse(worth[place], _LEAST_WORTH, start),
                {side: direct[side][place].correct for side in SIDES},
                {side: direct[side][place].incorrect for side in SIDES},
                {side: direct[side][place].promoted for side in SIDES},
                {side: direct[side][place].suppressed for side in SIDES},
                looks,
            )
        )
    return worth, shown


def _patterns(on: Receivers, sublayers: set[int]) -> dict[int, dict[SideName, Tensor]]:
    """Attention weights of all heads of these sublayers, by sublayer and side. [head, window, column]"""
    found: dict[int, dict[SideName, Tensor]] = {}
    for index in sorted(sublayers):
        sublayer = on.model.sublayers[index - 1] if index else None
        if not isinstance(sublayer, Attention):
            continue
        prefix = on.runs.prefix[index - 1]
        found[index] = {}
        for side in SIDES:
            into_q, into_k, _ = sublayer.ports(on.port_inputs(index, side))
            q, k = sublayer.project("q", into_q, on.layout), sublayer.project("k", into_k, on.layout)
            found[index][side] = sublayer.pattern(q, sublayer.per_head(k), on.layout, prefix)[:, 0].cpu()
    return found


def _looks(patterns: Mapping[SideName, Tensor], worth: Tensor, start: int) -> tuple[Look, ...]:
    """Rows of attention [window, column] of one head: of the answer position, and of those that matter most."""
    answer, sizes = len(worth) - 1, worth.abs()
    others = [place for place in sizes.argsort(descending=True).tolist() if place != answer][:_ELSEWHERE]
    rows = [answer, *(place for place in others if sizes[place] > _NOTICEABLE * sizes.sum())]
    return tuple(Look(start + row, {side: _sparse(patterns[side][row], _LEAST_LOOK) for side in SIDES}) for row in rows)


def _sparse(values: Tensor, least: float, first: int = 0) -> Sparse:
    """The largest entries by size, if they are not below `least`; `first` is the position of the first."""
    order = values.abs().argsort(descending=True)[:_LISTED].tolist()
    return tuple((first + place, float(values[place])) for place in order if abs(float(values[place])) >= least)


@dataclass(frozen=True)
class _Direct:
    correct: float
    incorrect: float
    promoted: Words
    suppressed: Words


def _direct(on: Receivers, pair: Pairs, senders: Sequence[int], side: SideName) -> list[_Direct]:
    """What nodes write at the answer position of one side, as logits above the mean of all words."""
    model, norm = on.model, on.model.final_norm
    run = on.runs.clean if side == "clean" else on.runs.corrupted
    written = run.outputs[senders, 0, -1]
    if isinstance(norm, Norm):
        written = norm.share(written, norm.standardise(bases(model, run.outputs)[-1][0, -1])[1])
    correct, incorrect = (answers[answers >= 0].to(model.device) for answers in (pair.correct[0], pair.incorrect[0]))
    found = []
    for part in written.split(max(1, _LOGITS // model.vocabulary_size)):
        logits = F.linear(part, model.head)
        logits = logits - logits.mean(dim=-1, keepdim=True)
        up, down = _extreme(model, logits), _extreme(model, -logits)
        found += [
            _Direct(float(row[correct].mean()), float(row[incorrect].mean()), most, tuple((w, -v) for w, v in least))
            for row, most, least in zip(logits, up, down, strict=True)
        ]
    return found


def _extreme(model: Model, logits: Tensor) -> list[Words]:
    values, tokens = (one.tolist() for one in logits.topk(min(_WORDS, model.vocabulary_size)))
    return [
        tuple((token_text(model, word), value) for word, value in zip(words, sizes, strict=True))
        for words, sizes in zip(tokens, values, strict=True)
    ]
