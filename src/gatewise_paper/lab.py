"""What experiments share: the model, its pairs, circuits, and what is measured, everything through the run store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Grouping
from gatewise.circuits.selection import Selection, select_each
from gatewise.compute import Compute
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.gates.labels import Gates, label_gates
from gatewise.methods import Method, discover, discover_all, find_method
from gatewise.methods.base import SearchDirection
from gatewise.models import load_model
from gatewise.models.model import Model
from gatewise.store import Store
from gatewise.tasks import Task, task
from gatewise.tasks.pairs import Pairs
from gatewise_paper.experiment import Measurement, Search, Variant
from gatewise_paper.presets import FORGET, Preset, plain_task
from gatewise_paper.unlearning_data import KEEP, unlearning_task

_SECOND_MASK = 1_000  # added to the seed of a mask for the seed of the other one


class Lab:
    """A preset at work in one folder."""

    def __init__(self, preset: Preset, folder: Path) -> None:
        self.preset = preset
        self.folder = folder
        self.store = Store(folder / "store")
        self._tasks: dict[str, Task] = {}
        self._setting: tuple[str, Setting] | None = None
        self._circuits: dict[tuple[str, str, str, int, Variant], dict[int, Circuit]] = {}  # read from the store once
        torch.set_num_threads(preset.threads)

    def of(self, experiment: str) -> Lab:
        """The same lab, with the methods that an experiment has."""
        return self.having(self.preset.of(experiment).methods)

    def having(self, methods: tuple[str, ...]) -> Lab:
        """The same lab, with other methods."""
        lab = copy(self)
        lab.preset = replace(self.preset, methods=methods)
        return lab

    @cached_property
    def model(self) -> Model:
        try:
            return load_model(self.preset.model, dtype=self.preset.dtype)
        except GatewiseError as error:
            raise GatewiseError(
                f"the preset {self.preset.name} cannot load its model. {error} Name a folder with the weights "
                f"by --model FOLDER; where there is a network, `hf download {self.preset.model} --local-dir FOLDER` "
                f"makes one."
            ) from error

    # What there is to measure

    def grid(
        self,
        *,
        tasks: Sequence[str] | None = None,
        methods: Sequence[str] | None = None,
        seeds: Mapping[str, int] | None = None,
    ) -> Iterator[tuple[str, str, int]]:
        """All combinations of task, method and seed; by default those of the preset."""
        for name in self.preset.tasks if tasks is None else tasks:
            for method in self.preset.methods if methods is None else methods:
                for seed in range((self.preset.seeds if seeds is None else seeds)[method]):
                    yield name, method, seed

    def cells(
        self,
        work: Callable[[Lab, Any], Any],
        key: Callable[..., Any],
        directions: Sequence[SearchDirection],
        *,
        apart: bool = False,
        **more: Any,
    ) -> Iterator[Measurement]:
        """A measurement for each of a grid, on circuits of all directions, or (`apart`) one for each direction.

        `more`: tasks, methods and seeds as for `grid`, and the other fields of all keys: `size` may be a function of
        the task, `variant` is that of the searches too.
        """
        variant, size = more.get("variant", ""), more.pop("size", None)
        chosen = {name: more.pop(name) for name in ("tasks", "methods", "seeds") if name in more}
        for name, method, seed in self.grid(**chosen):
            for some in [(one,) for one in directions] if apart else [tuple(directions)]:
                own: dict[str, Any] = {"direction": some[0]} if apart else {}
                if size is not None:
                    own["size"] = size(name) if callable(size) else size
                about = key(task=name, method=method, seed=seed, **own, **more)
                yield Measurement(work, about, (Search(name, method, seed, some, variant),))

    def sizes(self, method: str, task: str) -> tuple[int, ...]:
        """Numbers of edges of a method's circuits, ascending."""
        return self.preset.sizes_for(method, self.model.graph, task)

    def searched_sizes(self, method: str, task: str) -> tuple[int, ...]:
        """Those that are searched for; Edge Pruning trains for the largest alone, unless its sizes are given."""
        sizes = self.sizes(method, task)
        return sizes[-1:] if method == "edge-pruning" and not self.preset.sizes.get(method) else sizes

    def measured_sizes(self, measure: str, method: str, task: str, *, judged: bool = False) -> tuple[int, ...]:
        """Those at which a measure is taken, or of these the ones that verdicts are about."""
        return self.preset.measured_sizes(measure, method, self.model.graph, task, judged=judged)

    def common_sizes(self, task: str, *methods: str) -> list[int]:
        """Those that all of these methods have, or all of the preset."""
        return sorted(set.intersection(*(set(self.sizes(method, task)) for method in methods or self.preset.methods)))

    def judged_sizes(self, measure: str, *methods: str) -> dict[str, list[int]]:
        """Sizes that verdicts are about, by task: as far as all of the methods have them."""
        declared = self.preset.judged_sizes.get(measure, {})
        common = {task: self.common_sizes(task, *methods) for task in self.preset.tasks}
        return {task: [n for n in some if n in declared.get(task, some)] for task, some in common.items()}

    def primary_size(self, measure: str, task: str) -> int:
        """Where half of the effect is; without a calibration the middle of all sizes, of the paper's 1,000."""
        declared = self.preset.primary_sizes.get(measure, {}).get(plain_task(task))
        if declared is not None:
            return declared
        sizes = self.common_sizes(task)[-6:]
        if not sizes:
            raise GatewiseError("the methods have no size in common; give sizes that all of them have, with --sizes.")
        return sizes[len(sizes) // 2]

    def gate_size(self, task: str) -> int:
        """Of the Ns and the Dn circuit that gates are split from."""
        return self.primary_size("faithfulness", task)

    # Pairs

    def pairs(self, task: str, method: str, seed: int = 0, variant: Variant = "") -> Pairs:
        """What a method searches on; no two seeds share a pair, unless that is what is asked for."""
        size = self.preset.pairs[method] * (2 if variant == "twice the pairs" else 1)
        place = 0 if variant == "fixed pairs" else seed
        return self._task(task).train[place * size : (place + 1) * size]

    def gate_pairs(self, task: str, seed: int = 0) -> Pairs:
        """What tested gates are found with: no circuit was searched on it, and nothing else is measured on it."""
        start, size = self.preset.pool + seed * self.preset.gate_pairs, self.preset.gate_pairs
        return self._task(task).train[start : start + size]

    def available_pairs(self, task: str) -> int:
        """How many there are to search on, for all seeds together."""
        return len(self._task(task).train)

    def held_out(self, task: str) -> Pairs:
        """What circuits are measured on; no method has seen it."""
        return self._task(task).test

    def setting(self, task: str) -> Setting:
        """The held-out pairs with their runs, which are kept as long as the same task is asked for."""
        if self._setting is None or self._setting[0] != task:
            self._setting = (task, Setting(self.model, self.held_out(task)))
        return self._setting[1]

    def _task(self, name: str) -> Task:
        if name not in self._tasks:
            size, held_out = self.preset.pool + self.preset.gate_pool, self.preset.held_out
            self._tasks[name] = (
                unlearning_task(name, self.preset, self.model, self.folder)
                if name in (FORGET, KEEP)
                else task(name, self.model, examples=size, test_examples=held_out, seed=0)
            )
        return self._tasks[name]

    # Circuits

    def find(self, search: Search) -> None:
        """Do a search, unless it is in the store."""
        sizes = self.sizes(search.method, search.task)
        for direction, circuits in self._found(search, sizes).items():
            at = (search.task, search.method, direction, search.seed, search.variant)
            self._circuits[at] = dict(zip(sizes, circuits, strict=True))

    def _found(self, search: Search, sizes: Sequence[int]) -> dict[SearchDirection, list[Circuit]]:
        """Circuits of all sizes, by direction."""
        task, method, seed, variant = search.about
        if variant == "fixed pairs" and method == "acdc":
            return {d: self._at_one_tau(task, d, seed, sizes) for d in search.directions}
        if variant in ("", "fixed pairs", "twice the pairs"):
            asked = self.searched_sizes(method, task)
            plain = self.search(task, method, search.directions, asked, seed, variant=variant)
            if asked == sizes:
                return plain
            return {d: [*self._best([dict.fromkeys(sizes, one)], sizes[:-1]), one] for d, (one,) in plain.items()}
        found: dict[SearchDirection, list[Circuit]] = {}
        for direction in search.directions:
            if variant == "two masks":
                both = [self.circuits(task, method, direction, s, "fixed pairs") for s in (seed, seed + _SECOND_MASK)]
                found[direction] = self._best(both, sizes)
                continue
            own = self.circuits(task, method, direction, seed)
            if variant == "connected":
                found[direction] = self._best([own], sizes, "connected")
            else:
                found[direction] = [self._untrimmed(own[size]) for size in sizes]
        return found

    def _best(
        self, searches: Sequence[Mapping[int, Circuit]], sizes: Sequence[int], select: Selection = "top"
    ) -> list[Circuit]:
        """For each size, the best edges by the mean of the searches' scores; where those are equal, in one go."""
        graph, shared = self.model.graph, list[tuple[Tensor, list[int]]]()
        for size in sizes:
            scores = torch.stack([scores for one in searches if (scores := one[size].scores) is not None]).mean(dim=0)
            if not shared or not torch.equal(shared[-1][0], scores):
                shared.append((scores, []))
            shared[-1][1].append(size)
        return [
            Circuit(graph, mask, scores)
            for scores, some in shared
            for mask in select_each(graph, scores.abs(), some, select)
        ]

    def _at_one_tau(self, task: str, direction: SearchDirection, seed: int, sizes: Sequence[int]) -> list[Circuit]:
        """What ACDC keeps on the pairs of the first seed and at its taus, going through the edges in another order."""
        first = self.circuits(task, "acdc", direction)
        if seed == 0:
            return [self._untrimmed(first[size]) for size in sizes]
        pairs, method = self.pairs(task, "acdc", seed, "fixed pairs"), self.method("acdc")
        taus = [first[size].provenance["notes"]["tau"] for size in sizes]
        compute = Compute(store=self.store)
        return [
            discover(self.model, pairs, method, direction, threshold=tau, seed=seed, compute=compute) for tau in taus
        ]

    def _untrimmed(self, trimmed: Circuit) -> Circuit:
        """What the tau of a circuit keeps: all edges with at least that effect."""
        notes = trimmed.provenance["notes"]
        found = Circuit(self.model.graph, trimmed.scores >= notes["tau"], trimmed.scores)
        if len(found) != notes["kept_at_tau"]:
            raise GatewiseError(f"tau {notes['tau']} kept {notes['kept_at_tau']} edges, and {len(found)} were found.")
        return found

    def circuits(
        self, task: str, method: str, direction: SearchDirection, seed: int = 0, variant: Variant = ""
    ) -> dict[int, Circuit]:
        """Circuits by the number of edges that was asked for. Searched now, unless they are in the store."""
        if (task, method, direction, seed, variant) not in self._circuits:
            self.find(Search(task, method, seed, (direction,), variant))
        return self._circuits[task, method, direction, seed, variant]

    def search(
        self,
        task: str,
        method: str,
        directions: Sequence[SearchDirection],
        sizes: Sequence[int],
        seed: int,
        *,
        store: bool = True,
        variant: Variant = "",
        **changes: Any,
    ) -> dict[SearchDirection, list[Circuit]]:
        """Circuits of any sizes; `changes`: of the preset's parameters."""
        circuits = discover_all(
            self.model,
            self.pairs(task, method, seed, variant),
            self.method(method, **changes),
            directions,
            sizes=sizes,
            seed=seed,
            compute=Compute(store=self.store if store else None),
        )
        return {direction: list(sized) for direction, sized in circuits.items()}

    def method(self, name: str, **changes: Any) -> Method:
        """Return a method with the preset's parameters, some of them changed."""
        return find_method(name).with_parameters({**self.preset.parameters.get(name, {}), **changes})

    def gates(self, task: str, method: str, size: int, seed: int = 0, by: Grouping = "port") -> Gates:
        """The plain split of the Ns and Dn circuits of one size."""
        ns, dn = (self.circuits(task, method, direction, seed)[size] for direction in ("ns", "dn"))
        return label_gates(ns, dn, by=by)

    # Measurements

    def measure(self, one: Measurement) -> Any:
        """What was measured before, or is measured now: plain data."""
        asked = {
            "work": one.name,
            "key": one.key._asdict(),
            "circuits": [self._fingerprints(search, one.by_scores) for search in one.searches],
            "held_out": self.held_out(one.key.task).fingerprint if hasattr(one.key, "task") else None,
        }
        about = {"weights": self.model.fingerprint, "dtype": self.preset.dtype, "threads": self.preset.threads}
        return self.store.remember({"what": "measurement", **about, "asked": asked}, lambda: one.work(self, one.key))

    def _fingerprints(self, search: Search, by_scores: bool) -> list[str]:
        some = [
            circuit
            for direction in search.directions
            for circuit in self.circuits(search.task, search.method, direction, search.seed, search.variant).values()
        ]
        found = [circuit.fingerprint for circuit in some]
        scores = [one.scores.cpu().numpy().tobytes() for one in some if by_scores and one.scores is not None]
        return found + [sha256(one).hexdigest() for one in dict.fromkeys(scores)]
