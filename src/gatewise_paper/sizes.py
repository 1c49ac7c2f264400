"""How many edges circuits have, by preset, method and task.

EAP, which ranks all edges at once, is run at the shares of the graph that the paper's 100 to 5,000 edges are of GPT-2's
32,491 (0.3 to 15 %), and at the sizes that the calibration chose to be judged; other methods at its primary sizes. Edge
Pruning trains at the largest of these, and its masks rank the edges for the smaller. Sizes that a user gives replace
all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError
from gatewise_paper.naming import plain_task
from gatewise_paper.presets import FORGET, PAPER_EDGES, PAPER_SIZES, Preset
from gatewise_paper.size_calibration import MEASURES, MeasureSizes

CURVES = ("eap",)  # methods that have the paper's shares too
_NEAR = 2  # times a judged size, within which the paper's shares are measured too


@dataclass(frozen=True)
class Sizes:
    """Numbers of edges of a preset's circuits in one graph."""

    preset: Preset
    graph: Graph

    def of(self, method: str, task: str) -> tuple[int, ...]:
        """Those that a method has circuits of, ascending."""
        setup = self.preset.setups[method]
        if task == FORGET:
            return self.preset.forgetting.sizes
        if setup.sizes:
            return tuple(sorted(set(setup.sizes)))
        chosen = {measure: self.chosen(measure, task) for measure in MEASURES}
        sizes = {own["primary"] for measure, own in chosen.items() if own and measure in setup.measures}
        if method in CURVES:
            sizes.update(self._shares, *(own["judged"] for own in chosen.values() if own))
        return tuple(sorted(sizes or self._shares))

    def searched(self, method: str, task: str) -> tuple[int, ...]:
        """Those that are searched for; Edge Pruning trains for the largest alone, unless its sizes are given."""
        sizes = self.of(method, task)
        return sizes[-1:] if method == "edge-pruning" and not self.preset.setups[method].sizes else sizes

    def measured(self, measure: str, method: str, task: str, *, only_judged: bool = False) -> tuple[int, ...]:
        """Those at which a measure is taken: those that verdicts are about, and the paper's shares near them.

        Further away all circuits do nothing, or everything, by the calibration.
        """
        sizes, chosen = self.of(method, task), self.chosen(measure, task)
        if chosen is None or not chosen["judged"]:
            return sizes
        wanted = {*chosen["judged"], chosen["primary"]}
        low, high = min(wanted) / _NEAR, max(wanted) * _NEAR
        if not only_judged:
            wanted.update(size for size in self._shares if low <= size <= high)
        return tuple(size for size in sizes if size in wanted)

    def common(self, task: str, *methods: str) -> list[int]:
        """Those that all of these methods have, or all of the preset."""
        return sorted(set.intersection(*(set(self.of(method, task)) for method in methods or self.preset.methods)))

    def judged(self, measure: str, *methods: str) -> dict[str, list[int]]:
        """Sizes that verdicts are about, by task: as far as all of the methods have them."""
        judged = {}
        for task in self.preset.tasks:
            chosen, common = self.chosen(measure, task), self.common(task, *methods)
            judged[task] = [size for size in common if chosen is None or size in chosen["judged"]]
        return judged

    def primary(self, measure: str, task: str) -> int:
        """Where half of the effect is; without a calibration the middle of all sizes, of the paper's 1,000."""
        chosen = self.chosen(measure, task)
        if chosen is not None:
            return chosen["primary"]
        sizes = self.common(task)[-len(PAPER_SIZES) :]
        if not sizes:
            raise GatewiseError("the methods have no size in common; give sizes that all of them have, with --sizes.")
        return sizes[len(sizes) // 2]

    def of_gates(self, task: str) -> int:
        """Size of the Ns and the Dn circuit whose set differences are the gates."""
        return self.primary("faithfulness", task)

    def chosen(self, measure: str, task: str) -> MeasureSizes | None:
        """What the calibration chose, if there was one."""
        return self.preset.calibration.get(plain_task(task), {}).get(measure)

    @property
    def _shares(self) -> set[int]:
        """The paper's sizes, as shares of its graph."""
        return {max(2, round(size * self.graph.n_edges / PAPER_EDGES)) for size in PAPER_SIZES}
