"""Searches whose results are kept as a record, so that a change of the code that should change nothing can be seen to.

`python tests/golden/cases.py` writes the record anew: do that only when a result is meant to change, and say why. The
first record was made by the code of 8e25da3, before its rooms were rearranged. `tiny/` holds the weights that the
package had then: the record is about searches, not about the model that the package ships.
ACDC for a number of edges was recorded anew when it began to look for its taus elsewhere (version 2).
The scores of EAP and EAP-IG had their sign turned, and nothing else, when positive began to mean that an edge helps the
task in every method and measure (version 2 of both).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import gatewise as gw
from gatewise.methods import find_method

HERE = Path(__file__).parent
RECORD = HERE / "record.safetensors"
_SIZES = {"tiny": [20, 100, 400], "planted": [4, 8, 12]}  # `planted`: what the record calls a synthetic model
_PARAMETERS: dict[str, dict[str, Any]] = {
    "acdc": {"tolerance": 1.0, "max_thresholds": 4},
    "eap": {},
    "eap-ig": {"steps": 3},
    "edge-pruning": {"steps": 30, "batch": 4, "draw": "one"},
}
_THRESHOLDS = {"acdc": 0.02, "eap": 0.02, "edge-pruning": 0.5}


@dataclass(frozen=True)
class Case:
    """One search."""

    model: str
    examples: int
    method: str
    direction: str
    how: dict[str, Any]  # sizes or threshold
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.model}/{self.method}/{self.direction}/{'edges' if 'sizes' in self.how else 'threshold'}"

    def run(self, model: Any, pairs: Any) -> dict[str, Tensor]:
        """Which edges each circuit keeps, and the scores, by name."""
        method = find_method(self.method).with_parameters(self.parameters)
        circuits = gw.discover_all(model, pairs, method, [self.direction], **self.how)[self.direction]  # type: ignore[index,list-item]
        record: dict[str, Tensor] = {}
        for i, circuit in enumerate(circuits):
            record[f"{self.name}/{i}/edges"] = torch.tensor(circuit.indices, dtype=torch.int32)
            if circuit.scores is not None and (i == 0 or not torch.equal(circuit.scores, circuits[0].scores)):  # type: ignore[arg-type]
                record[f"{self.name}/{i}/scores"] = circuit.scores.clone()
        return record


def small_cases() -> Iterator[Case]:
    """All methods, directions and ways to ask, on the old `tiny` and on a synthetic model."""
    for model, examples in (("tiny", 6), ("planted", 8)):
        for method, parameters in _PARAMETERS.items():
            for direction in ("ns", "dn", "ns+dn") if method != "eap-ig" else ("ns",):
                sizes = _SIZES[model][:1] if method == "acdc" and model == "tiny" else _SIZES[model]  # the rest is slow
                yield Case(model, examples, method, direction, {"sizes": sizes}, parameters)
                if method in _THRESHOLDS:
                    yield Case(model, examples, method, direction, {"threshold": _THRESHOLDS[method]}, parameters)


def large_cases() -> Iterator[Case]:
    """One search by ACDC and one by EAP in a real model."""
    yield Case("smollm2-135m", 4, "acdc", "ns", {"threshold": 0.1})
    yield Case("smollm2-135m", 8, "eap", "ns+dn", {"sizes": [100, 500]})


def load(name: str) -> tuple[Any, Any]:
    """The model of cases, and pairs for it."""
    if name == "planted":
        from gatewise.models.synthetic.random_circuits import random_logic_model

        synthetic = random_logic_model(7, nested=True, noise=0.05)
        return synthetic.model, synthetic.pairs
    model = gw.load_model(str(HERE / "tiny") if name == "tiny" else name)
    return model, gw.task("ioi", model, examples=16, seed=0).train


def known() -> dict[str, Tensor]:
    """The record."""
    return load_file(RECORD)


if __name__ == "__main__":
    torch.set_num_threads(1)
    content: dict[str, Tensor] = {}
    for case in (*small_cases(), *large_cases()):
        model, pairs = load(case.model)
        content |= case.run(model, pairs[: case.examples])
    save_file(content, RECORD)
