"""What nodes do on a few prompts, clean beside corrupted: where heads look, where that matters, what they promote.

    effect      gbar . (clean - corrupted output), per position, normalised by the mean difference of the logit
                difference between the runs: what a node's change does to the logit difference to first order, on all
                paths to the output (`engine/patching/node_patching.py`)
    direct      what a node writes at the answer position, taken straight through the final norm (its factor held at the
                whole run's) and the unembedding: logits of tokens above the mean of the vocabulary; tokens are listed
                if a random output of the same length would seldom move any token so far
    attention   attention weights of a head, from the answer position and from the positions where its effect is largest

Only the nodes asked for are unembedded, one prompt after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor

from gatewise.devices import fetched, on_device, rows_of, widest_float
from gatewise.engine.patching.node_patching import NodePatching
from gatewise.engine.runs.activations import bases
from gatewise.engine.setting import SIDES, Batch, Setting, SideName
from gatewise.evaluation.prompts import token_texts
from gatewise.models.components import Attention, Norm
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs

_TOKENS = 5  # promoted by each node, per prompt and side
_ELSEWHERE = 2  # positions besides the answer's that a head is shown at
_NOTICEABLE = 0.1  # of a head's effects, summed without signs, that a position needs to be shown
_LEAST_EFFECT = 0.005  # normalised, that a position needs to be listed
_LEAST_WEIGHT = 0.01
_LISTED = 12  # entries of a row of attention, or positions of an effect
_LOGITS = 2**25  # entries of logits at a time
_RANDOM_DIRECTIONS = 32  # to measure how large logits are by chance

Tokens = tuple[tuple[str, float], ...]  # with their logits
Sparse = tuple[tuple[int, float], ...]  # (position, value), the largest first


@dataclass(frozen=True)
class ShownPrompt:
    """One pair as tokens."""

    clean: tuple[str, ...]
    corrupted: tuple[str, ...]
    correct: tuple[str, ...]
    incorrect: tuple[str, ...]


@dataclass(frozen=True)
class AttentionRow:
    """Where a head looks from one position."""

    position: int
    weights: Mapping[SideName, Sparse]


@dataclass(frozen=True)
class DirectEffect:
    """What a node writes at the answer position of one side, as logits."""

    correct: float  # on the correct answers, their mean
    incorrect: float
    promoted: Tokens  # the tokens that it pushes up most, beyond what a random output of its length does
    suppressed: Tokens  # down most, likewise


@dataclass(frozen=True)
class OnPrompt:
    """What a node does on one pair."""

    effect: Sparse
    direct: Mapping[SideName, DirectEffect]
    attention: tuple[AttentionRow, ...]  # none for nodes that are no heads; the answer position first


@dataclass(frozen=True)
class ShownNodes:
    """Prompts, and what nodes do on each of them."""

    prompts: tuple[ShownPrompt, ...] = ()
    effect: Mapping[str, float] = field(default_factory=dict)  # over all positions, the mean of the prompts
    of: Mapping[str, tuple[OnPrompt, ...]] = field(default_factory=dict)


@torch.no_grad()
def shown_nodes(model: Model, pairs: Pairs, nodes: Sequence[str]) -> ShownNodes:
    """What these nodes do on these pairs. Nodes that write nothing (`logits`) are left out."""
    senders = [sender for name in nodes if (sender := model.graph.find_sender(name)) is not None]
    setting = Setting(model, pairs)
    singles = [pairs[i : i + 1] for i in range(len(pairs))]  # one by one: no padding
    runs = [NodePatching(setting, Batch(i, pair)) for i, pair in enumerate(singles)]
    total = torch.stack([run.total_effect.mean() for run in runs]).mean()
    random_peak = measure_random_peak(model)
    effects, behaviours = [], []
    for run, pair in zip(runs, singles, strict=True):
        effect, behaviour = _on_prompt(run, pair, senders, total, random_peak)
        effects.append(effect.sum(dim=-1).tolist())
        behaviours.append(behaviour)
    names = [model.graph.senders[sender] for sender in senders]
    return ShownNodes(
        prompts=tuple(_prompt(model, pair) for pair in singles),
        effect={name: fmean(column) for name, column in zip(names, zip(*effects, strict=True), strict=True)},
        of=dict(zip(names, zip(*behaviours, strict=True), strict=True)),
    )


def _prompt(model: Model, pair: Pairs) -> ShownPrompt:
    tokens = (pair.clean[0], pair.corrupted[0], pair.correct[0], pair.incorrect[0])
    return ShownPrompt(*(token_texts(model, row[row >= 0]) for row in tokens))


def _on_prompt(
    on: NodePatching, pair: Pairs, senders: Sequence[int], total: Tensor, random_peak: float
) -> tuple[Tensor, list[OnPrompt]]:
    """Effects by position [node, window] and everything else, of one pair."""
    start = on.layout.start
    gradients = torch.stack([on.gradient(sender)[0] for sender in senders])
    written = on.delta[rows_of(senders, on.delta.device), 0]
    effects = ((gradients * written).sum(dim=-1, dtype=widest_float(written.device)) / total).cpu().double()
    patterns = _patterns(on, {on.graph.sublayer_of_sender[sender] for sender in senders})
    direct = {side: _direct(on, pair, senders, side, random_peak) for side in SIDES}
    behaviours = []
    for i, sender in enumerate(senders):
        sublayer = on.graph.sublayer_of_sender[sender]
        attention: tuple[AttentionRow, ...] = ()
        if sublayer in patterns:
            head = sender - on.graph.sender_slices[sublayer].start
            attention = _attention({side: patterns[sublayer][side][head] for side in SIDES}, effects[i], start)
        by_side = {side: direct[side][i] for side in SIDES}
        behaviours.append(OnPrompt(_sparse(effects[i], _LEAST_EFFECT, start), by_side, attention))
    return effects, behaviours


def _patterns(on: NodePatching, sublayers: set[int]) -> dict[int, dict[SideName, Tensor]]:
    """Attention weights of all heads of these sublayers, by sublayer and side. [head, window, column]"""
    patterns: dict[int, dict[SideName, Tensor]] = {}
    for index in sorted(sublayers):
        sublayer = on.model.sublayers[index - 1] if index else None
        if not isinstance(sublayer, Attention):
            continue
        prefix = on.runs.prefix[index - 1]
        by_side = []
        for side in SIDES:
            into_q, into_k, _ = sublayer.ports(on.port_inputs(index, side))
            q, k = sublayer.project("q", into_q, on.layout), sublayer.project("k", into_k, on.layout)
            by_side.append(sublayer.pattern(q, sublayer.per_head(k), on.layout, prefix)[:, 0])
        patterns[index] = dict(zip(SIDES, fetched(by_side), strict=True))
    return patterns


def _attention(patterns: Mapping[SideName, Tensor], effects: Tensor, start: int) -> tuple[AttentionRow, ...]:
    """Rows of attention [window, column] of one head: of the answer position, and of those that matter most."""
    answer, sizes = len(effects) - 1, effects.abs()
    others = [position for position in sizes.argsort(descending=True).tolist() if position != answer][:_ELSEWHERE]
    rows = []
    for position in (answer, *others):
        if position == answer or sizes[position] > _NOTICEABLE * sizes.sum():
            weights = {side: _sparse(patterns[side][position], _LEAST_WEIGHT) for side in SIDES}
            rows.append(AttentionRow(start + position, weights))
    return tuple(rows)


def _sparse(values: Tensor, least: float, first: int = 0) -> Sparse:
    """The largest entries by size, if they are not below `least`; `first` is the position of the first."""
    order = values.abs().argsort(descending=True)[:_LISTED].tolist()
    return tuple((first + i, float(values[i])) for i in order if abs(float(values[i])) >= least)


def _direct(
    on: NodePatching, pair: Pairs, senders: Sequence[int], side: SideName, random_peak: float
) -> list[DirectEffect]:
    """What nodes write at the answer position of one side, as logits above the mean of the vocabulary."""
    model, norm = on.model, on.model.final_norm
    run = on.runs.clean if side == "clean" else on.runs.corrupted
    written = run.outputs[rows_of(senders, model.device), 0, -1]
    noise = random_peak * written.norm(dim=-1)
    if isinstance(norm, Norm):
        scale = norm.standardise(bases(model, run.outputs)[-1][0, -1])[1]
        written, noise = norm.share(written, scale), noise * scale
    answers = [on_device(tokens[tokens >= 0], model.device) for tokens in (pair.correct[0], pair.incorrect[0])]
    shown = min(_TOKENS, model.vocabulary_size)
    effects = []
    at_a_time = max(1, _LOGITS // model.vocabulary_size)  # few nodes at a time: vocabularies are large
    for part, limits in zip(written.split(at_a_time), noise.split(at_a_time), strict=True):
        logits = _centred_logits(model, part)
        on_answers = [logits[:, tokens].mean(dim=-1) for tokens in answers]
        extremes = [*logits.topk(shown), *logits.topk(shown, largest=False), limits]
        for correct, incorrect, *rest, limit in zip(*fetched([*on_answers, *extremes]), strict=True):
            promoted, suppressed = (_texts(model, *rest[i : i + 2], least=float(limit)) for i in (0, 2))
            effects.append(DirectEffect(float(correct), float(incorrect), promoted, suppressed))
    return effects


def _centred_logits(model: Model, written: Tensor) -> Tensor:
    """Logits above the mean of the vocabulary. [..., vocabulary]"""
    logits = F.linear(written, model.head)
    return logits - logits.mean(dim=-1, keepdim=True)


def measure_random_peak(model: Model) -> float:
    """Measure the largest logit, by size, that random outputs of length 1 give to any token: what is noise.

    Args:
        model: Whose final norm, its factor held at 1, and unembedding they go through.

    Returns:
        The mean over random directions, the same at every call.
    """
    drawn = torch.randn(_RANDOM_DIRECTIONS, model.head.shape[1], generator=torch.Generator().manual_seed(0))
    directions = on_device(F.normalize(drawn, dim=-1), model.device).to(model.dtype)
    if isinstance(model.final_norm, Norm):
        directions = model.final_norm.share(directions, torch.ones_like(directions[:, :1]))
    peaks = []
    for part in directions.split(max(1, _LOGITS // model.vocabulary_size)):
        peaks.append(_centred_logits(model, part).abs().amax(dim=-1))
    return float(torch.cat(peaks).mean())


def _texts(model: Model, values: Tensor, tokens: Tensor, *, least: float) -> Tokens:
    """Tokens and their logits, without those that a random direction would move as far."""
    texts = token_texts(model, tokens)
    return tuple((text, value) for text, value in zip(texts, values.tolist(), strict=True) if abs(value) > least)
