"""What heads look at, and what nodes write straight into the logit difference, clean beside corrupted."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gatewise.compute import Compute
from gatewise.devices import widest_float
from gatewise.display import SHOWN, card, frame
from gatewise.engine.runs.activations import bases, lay_out, plain_run
from gatewise.engine.setting import SIDES, Batch, Data, Setting, SideName
from gatewise.errors import GatewiseError, suggestion
from gatewise.evaluation.prompts import token_texts
from gatewise.models.components import Attention, Norm
from gatewise.models.model import Model
from gatewise.statistics import Interval, ratio_interval
from gatewise.tasks.pairs import Pairs

_LISTED = 3  # tokens of a verdict


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where a head looks on one prompt.

    Attributes:
        tokens: The prompt's tokens as text.
        weights: From each position (row) to each one before it; rows sum to 1. [position, position]
    """

    tokens: tuple[str, ...]
    weights: Tensor

    def looks_at(self, position: int = -1, count: int = _LISTED) -> list[tuple[str, float]]:
        """List the tokens that get most attention.

        Args:
            position: From where the head looks; -1 is where the answer is read.
            count: How many to list.

        Returns:
            Tokens with their weights, the largest first.
        """
        weights = self.weights[position]
        order = weights.argsort(descending=True)[:count].tolist()
        return [(self.tokens[i], float(weights[i])) for i in order]


@dataclass(frozen=True, eq=False, repr=False)
class AttentionPatterns:
    """Where a head looks, on both prompts of every pair.

    Attributes:
        head: Its name.
        clean: On the clean prompts.
        corrupted: On the corrupted ones.
        targets: Mean attention from where the answer is read to the correct and the incorrect answers' own tokens, to
            the first token and to itself, by side.
    """

    head: str
    clean: tuple[Pattern, ...]
    corrupted: tuple[Pattern, ...]
    targets: Mapping[SideName, Mapping[str, float]]

    def to_frame(self) -> Any:
        """List the attention from where the answer is read.

        Returns:
            A pandas frame with the columns pair, side, position, token and weight.
        """
        rows = []
        for side in SIDES:
            for pair, pattern in enumerate(getattr(self, side)):
                for position, (token, weight) in enumerate(zip(pattern.tokens, pattern.weights[-1], strict=True)):
                    row = {"pair": pair, "side": side, "position": position, "token": token}
                    rows.append({**row, "weight": float(weight)})
        return frame(rows)

    def __repr__(self) -> str:
        means = [
            f"{weight:.2f} to {target} ({self.targets['corrupted'][target]:.2f} on corrupted prompts)"
            for target, weight in sorted(self.targets["clean"].items(), key=lambda entry: -entry[1])
        ]
        first = ", ".join(f"{token!r} {weight:.2f}" for token, weight in self.clean[0].looks_at())
        return (
            f"<Attention of {self.head} where the answer is read, mean of {len(self.clean)} pairs: {', '.join(means)}; "
            f"on the first pair to {first}>"
        )

    def _repr_html_(self) -> str:
        lines = []
        for side in SIDES:
            pattern = getattr(self, side)[0]
            words = []
            for token, weight in zip(pattern.tokens, pattern.weights[-1].tolist(), strict=True):
                shade = f'style="background:rgba(217,119,6,{weight:.3f})" title="{weight:.3f}"'
                words.append(f"<span {shade}>{html.escape(token)}</span>")
            lines.append(f"<div>{side}: {''.join(words)}</div>")
        return f"<div>{html.escape(repr(self).strip('<>'))}{''.join(lines)}</div>"


def attention(model: Model, data: Data, head: str, *, compute: Compute | None = None) -> AttentionPatterns:
    """Return where a head looks, on the clean and the corrupted prompts, with the prompts' tokens.

    Args:
        model: The model.
        data: Pairs, a task, of which the held-out pairs are used, or a prepared setting.
        head: Such as "a9.h6".
        compute: Where to run.

    Returns:
        A pattern for each prompt, and how much goes to the answers' tokens on average.

    Raises:
        GatewiseError: There is no such head.
    """
    setting = Setting.of(model, data, "test", compute=compute)
    sender = model.graph.find_sender(head)
    index = 0 if sender is None else model.graph.sublayer_of_sender[sender]
    sublayer = model.sublayers[index - 1] if index else None
    if sender is None or not isinstance(sublayer, Attention):
        heads = [name for spec in model.graph.sublayers if spec.kind == "attention" for name in spec.nodes]
        raise GatewiseError(
            f"there is no head {head!r} in {model.name};{suggestion(head, heads)} heads are written a5.h9: layer 5, "
            f"head 9."
        )
    number = sender - model.graph.sender_slices[index].start
    patterns: dict[SideName, list[Pattern]] = {side: [] for side in SIDES}
    for batch in setting.batches():
        for side in SIDES:
            weights = _weights(model, index - 1, sublayer, batch.pairs, side)[number]
            tokens = batch.pairs.clean if side == "clean" else batch.pairs.corrupted
            for row, length in enumerate(batch.pairs.lengths.tolist()):
                real = weights[row, -length:, -length:].cpu()
                patterns[side].append(Pattern(token_texts(model, tokens[row, -length:]), real))
    clean, corrupted = (tuple(patterns[side]) for side in SIDES)
    targets = {side: _targets(patterns[side], setting.pairs, side) for side in SIDES}
    return AttentionPatterns(model.graph.senders[sender], clean, corrupted, targets)


@torch.no_grad()
def _weights(model: Model, index: int, sublayer: Attention, pairs: Pairs, side: SideName) -> Tensor:
    """Attention weights of all heads of a sublayer, over whole prompts. [head, example, column, column]"""
    layout = lay_out(model, pairs, share_prefix=False)
    run = plain_run(model, pairs.clean if side == "clean" else pairs.corrupted, layout)
    x = bases(model, run.outputs)[index][None]
    q, k = sublayer.project("q", x, layout), sublayer.project("k", x, layout)
    return sublayer.pattern(q, sublayer.per_head(k), layout, None)


def _targets(patterns: Sequence[Pattern], pairs: Pairs, side: SideName) -> dict[str, float]:
    """Mean attention from the last position to tokens that mean something in every prompt."""
    tokens = pairs.clean if side == "clean" else pairs.corrupted
    totals = dict.fromkeys(("the correct answer", "the incorrect answer", "the first token", "itself"), 0.0)
    for row, pattern in enumerate(patterns):
        prompt, weights = tokens[row, -len(pattern.tokens) :], pattern.weights[-1]
        totals["the correct answer"] += float(weights[torch.isin(prompt, pairs.correct[row])].sum())
        totals["the incorrect answer"] += float(weights[torch.isin(prompt, pairs.incorrect[row])].sum())
        totals["the first token"] += float(weights[0])
        totals["itself"] += float(weights[-1])
    return {target: total / len(patterns) for target, total in totals.items()}


@dataclass(frozen=True, eq=False, repr=False)
class DirectContributions:
    """What nodes write straight into the logit difference, through the final norm with its scale held.

    Attributes:
        nodes: Their names.
        clean: On every clean prompt; all nodes together make the model's logit difference, but for output biases and a
            final soft cap. [node, pair]
        corrupted: On every corrupted one. [node, pair]
    """

    nodes: tuple[str, ...]
    clean: Tensor
    corrupted: Tensor

    def mean(self, node: str, side: SideName = "clean") -> Interval:
        """Return a node's mean contribution over pairs.

        Args:
            node: One of `nodes`.
            side: On the `clean` or the `corrupted` prompts.

        Returns:
            The mean with its 95 % interval.
        """
        values = (self.clean if side == "clean" else self.corrupted)[self.nodes.index(node)].tolist()
        return ratio_interval(values, [1.0] * len(values))

    def _rows(self, count: int) -> list[tuple[str, Interval, float]]:
        order = self.clean.mean(dim=1).abs().argsort(descending=True)[:count].tolist()
        names = [self.nodes[i] for i in order]
        return [(name, self.mean(name), self.mean(name, "corrupted").value) for name in names]

    def to_frame(self) -> Any:
        """List all nodes, the largest contribution first.

        Returns:
            A pandas frame with the columns node, clean, low, high and corrupted.
        """
        rows = self._rows(len(self.nodes))
        return frame(
            [
                {"node": node, "clean": share.value, "low": share.low, "high": share.high, "corrupted": corrupted}
                for node, share, corrupted in rows
            ]
        )

    def __repr__(self) -> str:
        shown = [f"{node} {_signed(share)} ({other:+.2f} corrupted)" for node, share, other in self._rows(_LISTED)]
        return f"<Direct contributions to the logit difference of {len(self.nodes)} nodes: {', '.join(shown)}>"

    def _repr_html_(self) -> str:
        rows = [(node, _signed(share), f"{other:+.3f}") for node, share, other in self._rows(SHOWN)]
        return card("DirectContributions", "to the logit difference", ("node", "clean", "corrupted"), rows)


def _signed(share: Interval) -> str:
    return f"{share.value:+.2f} [{share.low:+.2f}, {share.high:+.2f}]"


def direct_contributions(
    model: Model, data: Data, nodes: str | Sequence[str] | None = None, *, compute: Compute | None = None
) -> DirectContributions:
    """Measure what nodes write straight into the logit difference: correct minus incorrect answers.

    Where there are several correct or incorrect answers, the mean of their logits counts.

    Args:
        model: The model.
        data: Pairs, a task, of which the held-out pairs are used, or a prepared setting.
        nodes: Such as "a9.h6" or ["a9.h6", "m8"]; None for all that write.
        compute: Where to run.

    Returns:
        The contribution of each node on every pair; positive helps.

    Raises:
        GatewiseError: There is no such node.
    """
    setting = Setting.of(model, data, "test", compute=compute)
    senders = model.graph.senders
    chosen = list(senders) if nodes is None else [nodes] if isinstance(nodes, str) else list(nodes)
    indices = []
    for name in chosen:
        sender = model.graph.find_sender(name)
        if sender is None:
            raise GatewiseError(f"there is no node {name!r} in {model.name};{suggestion(name, senders)} try 'a5.h9'.")
        indices.append(sender)
    parts = [[_written(setting, batch, indices, side) for batch in setting.batches()] for side in SIDES]
    clean, corrupted = (torch.cat(batches, dim=1) for batches in parts)
    return DirectContributions(tuple(senders[sender] for sender in indices), clean, corrupted)


@torch.no_grad()
def _written(setting: Setting, batch: Batch, senders: Sequence[int], side: SideName) -> Tensor:
    """Contributions at the answer position of a batch. [node, example]"""
    model, runs = setting.model, setting.runs(batch)
    run = runs.clean if side == "clean" else runs.corrupted
    written = run.outputs[senders, :, -1]
    if isinstance(model.final_norm, Norm):
        scale = model.final_norm.standardise(bases(model, run.outputs)[-1][:, -1])[1]
        written = model.final_norm.share(written, scale)
    read = torch.stack(
        [
            model.head[correct[correct >= 0]].mean(dim=0) - model.head[incorrect[incorrect >= 0]].mean(dim=0)
            for correct, incorrect in zip(batch.pairs.correct, batch.pairs.incorrect, strict=True)
        ]
    )
    return (written * read).sum(dim=-1, dtype=widest_float(read.device)).cpu().double()
