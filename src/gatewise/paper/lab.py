"""What experiments share: the model, its pairs, circuits and their behaviour, everything through the run store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from gatewise.circuits.circuit import Circuit
from gatewise.errors import GatewiseError
from gatewise.evaluation import evaluate
from gatewise.logic.gates import Gates, split_gates
from gatewise.methods import discover
from gatewise.methods.contract import SearchDirection
from gatewise.models import load_model
from gatewise.models.model import Model
from gatewise.paper.contract import Cell
from gatewise.paper.presets import Preset
from gatewise.store import Store
from gatewise.tasks import Task, task
from gatewise.tasks.pairs import Pairs

Behaviour = dict[str, Any]  # an Evaluation as JSON


class Lab:
    """A preset at work in one folder."""

    def __init__(self, preset: Preset, folder: Path) -> None:
        self.preset = preset
        self.folder = folder
        self.store = Store(folder / "store")
        self._tasks: dict[str, Task] = {}
        self._circuits: dict[tuple[str, str, str, int], dict[int, Circuit]] = {}  # read from the store once
        torch.set_num_threads(preset.threads)

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

    def sizes(self, method: str) -> tuple[int, ...]:
        """Numbers of edges of a method's circuits, ascending."""
        return self.preset.sizes_for(method, self.model.graph)

    @property
    def common_sizes(self) -> tuple[int, ...]:
        return self.preset.common_sizes(self.model.graph)

    def pairs(self, task: str, method: str, seed: int = 0) -> Pairs:
        """What a method searches on; no two seeds share a pair."""
        size = self.preset.pairs[method]
        return self._task(task).train[seed * size : (seed + 1) * size]

    def held_out(self, task: str) -> Pairs:
        """What circuits are measured on; no method has seen it."""
        return self._task(task).test

    def circuits(self, task: str, method: str, direction: SearchDirection, seed: int = 0) -> dict[int, Circuit]:
        """Circuits by their number of edges. Searched now, unless they are in the store."""
        asked = (task, method, direction, seed)
        if asked not in self._circuits:
            self._circuits[asked] = self._search(*asked)
        return self._circuits[asked]

    def _search(self, task: str, method: str, direction: SearchDirection, seed: int) -> dict[int, Circuit]:
        sizes = self.sizes(method)
        parameters = self.preset.parameters.get(method, {})
        pairs = self.pairs(task, method, seed)
        found = discover(self.model, pairs, method, direction, edges=sizes, seed=seed, store=self.store, **parameters)
        return dict(zip(sizes, found, strict=True))

    def gates(self, task: str, method: str, size: int, seed: int = 0) -> Gates:
        """The plain split of the Ns and Dn circuits of one size, beside the Ns+Dn circuit."""
        ns, dn, both = (self.circuits(task, method, direction, seed)[size] for direction in ("ns", "dn", "ns+dn"))
        return split_gates(ns, dn, joint=both)

    def behaviours(self, task: str, method: str, direction: SearchDirection, seed: int = 0) -> dict[int, Behaviour]:
        """What the circuits of each size and their complements do on the held-out pairs."""
        circuits = self.circuits(task, method, direction, seed)

        def compute() -> list[Behaviour]:
            found = evaluate(self.model, self.held_out(task), list(circuits.values()), random_circuits=0)
            return found.to_json()

        asked = {"circuits": [c.fingerprint for c in circuits.values()], "held_out": self.held_out(task).fingerprint}
        return dict(zip(circuits, self.remember("behaviours", asked, compute), strict=True))

    def remember(self, what: str, asked: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        """What `compute` gives, plain data, computed once. `asked` names all that determines it but the weights."""
        about = {"weights": self.model.fingerprint, "dtype": self.preset.dtype, "threads": self.preset.threads}
        return self.store.remember({"what": what, **about, "asked": dict(asked)}, compute)

    def find(self, cell: Cell) -> None:
        """Do what a cell asks for, unless it is in the store."""
        if cell.measured:
            self.behaviours(cell.task, cell.method, cell.direction, cell.seed)
        else:
            self.circuits(cell.task, cell.method, cell.direction, cell.seed)

    def seconds(self, cell: Cell) -> float:
        """Processor seconds that the search of a cell took when it was done; the load of the machine matters little."""
        circuits = self.circuits(cell.task, cell.method, cell.direction, cell.seed)
        return float(next(iter(circuits.values())).provenance["time"]["processor_seconds"])

    def _task(self, name: str) -> Task:
        if name not in self._tasks:
            size, held_out = self.preset.pool, self.preset.held_out
            self._tasks[name] = task(name, self.model, examples=size, test_examples=held_out, seed=0)
        return self._tasks[name]
