"""Measuring gates: the effect of every set of groups at its receiver, and of one interaction in the whole model.

With the edges of a set S of groups clean and all others corrupted, the receiver B puts out B(S). Its effect on one pair
of prompts, in units of the logit difference, is

    gbar . (B(S) - B(none))      gbar: gradient of the logit difference at B's output, mean of that of both runs

(`engine.patching.node_patching`). The *total effect* is the logit difference of the clean run minus that of the
corrupted run. Normalised effects are means over pairs of the one divided by means over pairs of the other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.devices import fetched
from gatewise.engine.patching.node_patching import LOGITS, NodePatching, PatchedBatches, Side
from gatewise.engine.setting import Data, Setting
from gatewise.errors import GatewiseError
from gatewise.gates.testing.candidates import Candidate
from gatewise.gates.testing.harsanyi import subsets
from gatewise.models.model import Model
from gatewise.tasks import Task
from gatewise.tasks.pairs import Pairs

FEWEST = 8  # pairs that an interval needs
SIDES: tuple[Side, ...] = ("clean", "corrupted")
_NO_EFFECT = 1e-6  # total effect, in units of the logit difference, that is rounding


def gate_setting(
    model: Model,
    data: Data,
    circuit: Circuit | None = None,
    *,
    fewest: int = FEWEST,
    compute: Compute | None = None,
) -> Setting:
    """Check before any work that gates can be tested on these pairs, of a task on its held-out ones."""
    setting = Setting.of(model, data, "test", compute=compute)
    setting.check_circuits([] if circuit is None else [circuit])
    if setting.ablation != "patching":
        raise GatewiseError(f"gates are tested between two runs, and {setting.ablation} ablation has one; drop it.")
    if len(setting) < fewest:
        raise GatewiseError(f"an interval over pairs needs at least {fewest} of them, got {len(setting)}.")
    return setting


def gate_batches(
    model: Model, data: Data, circuit: Circuit | None = None, *, compute: Compute | None = None
) -> PatchedBatches:
    """The receivers of a circuit or of the whole model on these pairs, checked by `gate_setting`."""
    return PatchedBatches(gate_setting(model, data, circuit, compute=compute), circuit)


def search_and_held_out(
    model: Model, data: Data, test: Pairs | None, circuit: Circuit | None = None, *, compute: Compute | None = None
) -> tuple[Setting, Setting]:
    """The pairs to search on, and held-out ones: those given, those of the task, or else the second half of all."""
    if isinstance(data, Task) and test is None:
        test = data.test
    whole = Setting.of(model, data, "train", compute=compute)
    middle = len(whole) // 2
    parts = (whole[:middle], whole[middle:]) if test is None else (whole, whole.with_pairs(test))
    return gate_setting(model, parts[0], circuit), gate_setting(model, parts[1], circuit)


def has_effect(total: Tensor) -> bool:
    """Whether the runs differ on average, so that effects can be divided by it. total: [example]"""
    return math.isfinite(float(total.mean())) and float(total.mean().abs()) >= _NO_EFFECT


def check_total_effect(total: Tensor) -> Tensor:
    """Refuse pairs whose two runs have the same logit difference; else return their total effect. [example]"""
    if not has_effect(total):
        raise GatewiseError(
            f"the logit difference differs by {float(total.mean()):.2g} between the clean and the corrupted run on "
            f"average, so that shares of it mean nothing. Use pairs that the model tells apart."
        )
    return total


def measure_tables(
    batches: PatchedBatches, candidates: Sequence[Candidate], sets: Sequence[int] | None = None, *, check: bool = True
) -> tuple[list[Tensor], Tensor]:
    """Effects of sets of groups and rest of each candidate, and the total effect; both per pair, not normalised.

    Args:
        batches: The pairs, and the circuit within which effects are measured.
        candidates: Any number of gates.
        sets: Of groups and rest, as bits, the rest as the last of them. By default all sets.
        check: Whether to refuse pairs without a total effect.

    Returns:
        A table [set, example] for each candidate, and the total effect [example].
    """
    by_node: dict[int, list[int]] = defaultdict(list)
    for index, candidate in enumerate(candidates):
        by_node[candidate.node].append(index)
    parts: list[list[Tensor]] = [[] for _ in candidates]
    totals = []
    for receivers in batches:
        by_receiver: list[tuple[int, Tensor]] = []
        # Candidates of one receiver are measured in one call: the rows that they share are computed once.
        for node, indices in by_node.items():
            rows = [candidates[index].clean_edges(sets) for index in indices]
            clean, rest_is_clean = (torch.cat(columns) for columns in zip(*rows, strict=True))
            effects = receivers.values(node, clean, rest_is_clean)
            by_receiver += zip(indices, effects.split([len(edges) for edges, _ in rows]), strict=True)
        *fetched_parts, total_effect = fetched([*(part for _, part in by_receiver), receivers.total_effect])
        for (index, _), part in zip(by_receiver, fetched_parts, strict=True):
            parts[index].append(part.double())
        totals.append(total_effect.double())
    total = torch.cat(totals)
    return [torch.cat(of_batches, dim=-1) for of_batches in parts], check_total_effect(total) if check else total


def end_to_end_interaction(receivers: NodePatching, candidate: Candidate, members: Sequence[int]) -> Tensor:
    """Interaction of some operands on the true logit difference, with the receiver's output put into the whole model.

    The same alternating sum over subsets as at the receiver, for each side that the rest of the model may be on.

    Returns:
        Per pair, not normalised. [side, example]
    """
    sets = subsets(members)
    signs = torch.tensor([(-1.0) ** (len(members) - bits.bit_count()) for bits in sets], dtype=torch.float64)
    if candidate.rest == "clean":
        sets = [bits | 1 << len(candidate.groups) for bits in sets]
    clean, rest_is_clean = candidate.clean_edges(sets)
    if candidate.node == LOGITS:  # nothing follows the logits: their effect is the true one, whatever the side
        return (signs @ receivers.values(candidate.node, clean, rest_is_clean).cpu().double()).expand(len(SIDES), -1)
    outputs = receivers.outputs(candidate.node, clean, rest_is_clean)
    logit_diffs = [receivers.logit_diffs_with(candidate.node, outputs, side) for side in SIDES]
    return torch.stack([signs @ values.double() for values in fetched(logit_diffs)])
