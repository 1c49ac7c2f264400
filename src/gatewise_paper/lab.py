"""What experiments share: the model, its pairs, circuits, and what is measured, everything through the run store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from gatewise.methods import Method, discover_all, find_method
from gatewise.methods.base import SearchDirection
from gatewise.models import load_model
from gatewise.models.model import Model
from gatewise.store import Store
from gatewise.tasks import Task, task
from gatewise.tasks.pairs import Pairs
from gatewise_paper.experiment import Measurement, Search, SearchName, Variant
from gatewise_paper.presets import DTYPE, FORGET, KEEP, THREADS, Preset
from gatewise_paper.sizes import Sizes
from gatewise_paper.unlearning_data import unlearning_task

_SECOND_MASK = 1_000  # added to the seed of a mask for the seed of the other one
Circuits = dict[int, Circuit]  # by the number of edges that was asked for


class Lab:
    """A preset at work in one folder."""

    def __init__(self, preset: Preset, folder: Path) -> None:
        self.preset = preset
        self.folder = folder
        self.store = Store(folder / "store")
        self._tasks: dict[str, Task] = {}
        self._setting: tuple[str, Setting] | None = None
        self._circuits: dict[tuple[SearchName, SearchDirection], Circuits] = {}  # read from the store once
        torch.set_num_threads(THREADS)

    def __reduce__(self) -> tuple[type[Lab], tuple[Preset, Path]]:
        """What another process needs to have the same lab: it loads the model itself, once."""
        return Lab, (self.preset, self.folder.absolute())

    def of(self, experiment: str) -> Lab:
        """The same lab, with the methods that an experiment has."""
        return self.with_methods(self.preset.of(experiment).methods)

    def with_methods(self, methods: tuple[str, ...]) -> Lab:
        """The same lab, with other methods: model, tasks and circuits are shared."""
        lab = Lab.__new__(Lab)
        lab.__dict__.update(self.__dict__, preset=replace(self.preset, methods=methods))
        return lab

    @cached_property
    def model(self) -> Model:
        try:
            return load_model(self.preset.model, dtype=DTYPE)
        except GatewiseError as error:
            raise GatewiseError(
                f"the preset {self.preset.name} cannot load its model. {error} Name a folder with the weights "
                f"by --model FOLDER; where there is a network, `hf download {self.preset.model} --local-dir FOLDER` "
                f"makes one."
            ) from error

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.preset, self.model.graph)

    def grid(
        self,
        *,
        tasks: Sequence[str] | None = None,
        methods: Sequence[str] | None = None,
        seeds: Mapping[str, int] | None = None,
    ) -> Iterator[tuple[str, str, int]]:
        """All combinations of task, method and seed; by default those of the preset. seeds: how many, by method."""
        for name in self.preset.tasks if tasks is None else tasks:
            for method in self.preset.methods if methods is None else methods:
                for seed in range(self.preset.setups[method].seeds if seeds is None else seeds[method]):
                    yield name, method, seed

    # Pairs

    def pairs(self, task: str, method: str, seed: int = 0, variant: Variant = "") -> Pairs:
        """What a method searches on; no two seeds share a pair, unless that is what is asked for."""
        size = self.preset.setups[method].pairs * (2 if variant == "twice the pairs" else 1)
        first = 0 if variant == "fixed pairs" else seed * size
        return self._task(task).train[first : first + size]

    def gate_pairs(self, task: str, seed: int = 0) -> Pairs:
        """What tested gates are found with: no circuit was searched on it, and nothing else is measured on it."""
        size = self.preset.testing.pairs
        first = self.preset.search_pairs + seed * size
        return self._task(task).train[first : first + size]

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
        preset = self.preset
        if name not in self._tasks and name in (FORGET, KEEP):
            self._tasks[name] = unlearning_task(name, preset, self.model, self.folder)
        elif name not in self._tasks:
            size = preset.search_pairs + preset.testing.pairs * preset.testing.seeds
            self._tasks[name] = task(name, self.model, examples=size, test_examples=preset.held_out, seed=0)
        return self._tasks[name]

    # Circuits

    def find(self, search: Search) -> None:
        """Do a search, unless it is in the store."""
        sizes = self.sizes.of(search.method, search.task)
        for direction, circuits in self._find(search, sizes).items():
            self._circuits[search.name, direction] = dict(zip(sizes, circuits, strict=True))

    def circuits(
        self, task: str, method: str, direction: SearchDirection, seed: int = 0, variant: Variant = ""
    ) -> Circuits:
        """Circuits of all sizes. Searched now, unless they are in the store."""
        search = Search(task, method, seed, (direction,), variant)
        if (search.name, direction) not in self._circuits:
            self.find(search)
        return self._circuits[search.name, direction]

    def gates(self, task: str, method: str, size: int, seed: int = 0, by: Grouping = "port") -> Gates:
        """Gates by the set difference of the Ns and Dn circuits of one size."""
        ns, dn = (self.circuits(task, method, direction, seed)[size] for direction in ("ns", "dn"))
        return label_gates(ns, dn, by=by)

    def method(self, name: str, **changes: Any) -> Method:
        """A method with the preset's parameters, some of them changed."""
        return find_method(name).with_parameters({**self.preset.setups[name].parameters, **changes})

    def search(
        self, search: Search, *, sizes: Sequence[int] | None = None, threshold: float | None = None, **changes: Any
    ) -> dict[SearchDirection, tuple[Circuit, ...]]:
        """Circuits of any sizes, or of a threshold, by direction. changes: of the preset's parameters."""
        return discover_all(
            self.model,
            self.pairs(search.task, search.method, search.seed, search.variant),
            self.method(search.method, **changes),
            search.directions,
            sizes=sizes,
            threshold=threshold,
            seed=search.seed,
            compute=Compute(store=self.store),
        )

    def _find(self, search: Search, sizes: Sequence[int]) -> Mapping[SearchDirection, Sequence[Circuit]]:
        """Circuits of all sizes, by direction."""
        if search.is_derived or (search.method == "acdc" and search.variant == "fixed pairs"):
            return {direction: self._derive(search, direction, sizes) for direction in search.directions}
        searched = self.sizes.searched(search.method, search.task)
        circuits = self.search(search, sizes=searched)
        if searched == sizes:
            return circuits
        # Edge Pruning was trained for the largest size alone: its mask ranks the edges of the others.
        return {d: [*self._select([dict.fromkeys(sizes, c)], sizes[:-1]), c] for d, (c,) in circuits.items()}

    def _derive(self, search: Search, direction: SearchDirection, sizes: Sequence[int]) -> list[Circuit]:
        """Circuits of a variant that are made of those of other searches."""
        task, method, seed, variant = search.name
        if variant == "two masks":
            seeds = (seed, seed + _SECOND_MASK)
            return self._select([self.circuits(task, method, direction, s, "fixed pairs") for s in seeds], sizes)
        if variant == "connected":
            return self._select([self.circuits(task, method, direction, seed)], sizes, "connected")
        trimmed = self.circuits(task, method, direction, 0 if variant == "fixed pairs" else seed)
        if search.is_derived:  # untrimmed, or the first of several orders on fixed pairs
            return [self._untrimmed(trimmed[size]) for size in sizes]
        alone, taus = replace(search, directions=(direction,)), [_tau(trimmed[size]) for size in sizes]
        return [self.search(alone, threshold=tau)[direction][0] for tau in taus]

    def _select(self, searches: Sequence[Circuits], sizes: Sequence[int], select: Selection = "top") -> list[Circuit]:
        """For each size, the best edges by the mean of the searches' scores."""
        graph = self.model.graph
        shared: list[tuple[Tensor, list[int]]] = []  # sizes with equal scores are selected in one go, which saves work
        for size in sizes:
            scores = torch.stack([s for circuits in searches if (s := circuits[size].scores) is not None]).mean(dim=0)
            if not shared or not torch.equal(shared[-1][0], scores):
                shared.append((scores, []))
            shared[-1][1].append(size)
        selected = []
        for scores, equal in shared:
            selected += [Circuit(graph, mask, scores) for mask in select_each(graph, scores.abs(), equal, select)]
        return selected

    def _untrimmed(self, trimmed: Circuit) -> Circuit:
        """What the tau of a circuit keeps: all edges with at least that effect."""
        expected = trimmed.provenance["notes"]["kept_at_tau"]
        assert trimmed.scores is not None
        circuit = Circuit(self.model.graph, trimmed.scores >= _tau(trimmed), trimmed.scores)
        if len(circuit) != expected:
            raise GatewiseError(f"tau {_tau(trimmed)} kept {expected} edges, and {len(circuit)} have that effect.")
        return circuit

    # Measurements

    def measure(self, measurement: Measurement) -> Any:
        """What was measured before, or is measured now: plain data."""
        key = measurement.key
        ingredients = {
            "what": "measurement",
            "weights": self.model.fingerprint,
            "dtype": DTYPE,
            "threads": THREADS,
            "work": measurement.name,
            "key": key._asdict(),
            "circuits": [self._fingerprints(search, measurement.by_scores) for search in measurement.searches],
            "held_out": self.held_out(key.task).fingerprint if hasattr(key, "task") else None,
        }
        return self.store.remember(ingredients, lambda: measurement.work(self, key))

    def _fingerprints(self, search: Search, by_scores: bool) -> list[str]:
        task, method, seed, variant = search.name
        by_direction = [self.circuits(task, method, direction, seed, variant) for direction in search.directions]
        circuits = [circuit for by_size in by_direction for circuit in by_size.values()]
        scores = [c.scores.cpu().numpy().tobytes() for c in circuits if by_scores and c.scores is not None]
        return [c.fingerprint for c in circuits] + [sha256(content).hexdigest() for content in dict.fromkeys(scores)]


def _tau(circuit: Circuit) -> float:
    """The threshold at which ACDC found a circuit."""
    tau: float = circuit.provenance["notes"]["tau"]
    return tau
