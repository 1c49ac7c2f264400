"""Output contribution of gates, as in the paper's appendix.

A gate's effect is the change of KL when the whole gate is removed from the full graph: D(G || G\\gate), by noising.
"""

from __future__ import annotations

from collections.abc import Iterable

from gatewise.compute import Compute
from gatewise.engine.patching.edge_ablation import kl_changes
from gatewise.engine.setting import Data, Setting
from gatewise.gates.labels import Gate
from gatewise.models.model import Model


def gate_effects(model: Model, data: Data, gates: Iterable[Gate], *, compute: Compute | None = None) -> list[float]:
    """Measure what removing each gate does to the output.

    Args:
        model: The model.
        data: Pairs, a task or a setting to measure on.
        gates: Gates of the model's graph.
        compute: Where to run.

    Returns:
        The change of KL for each gate, a mean over examples.
    """
    index = model.graph.index
    removals = [frozenset(index(edge) for edge in gate.edges) for gate in gates]
    changes = kl_changes(Setting.of(model, data, compute=compute), None, removals, task="contributions")
    effects: list[float] = changes.mean(dim=1).tolist()
    return effects
