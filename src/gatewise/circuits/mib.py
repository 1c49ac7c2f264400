"""A submission to the circuit track of MIB, the mechanistic interpretability benchmark: one folder per task and model.

    OUT/README.md                                where each circuit came from
    OUT/{task-with-hyphens}_{model}/importances.json     one number per edge, from which MIB takes circuits of all sizes
    OUT/{task-with-hyphens}_{model}/0.001.json ...       or, from several circuits of one task and model, one per size

Files hold exactly the keys of EAP-IG and MIB: `cfg`, `nodes` and `edges`; where they came from is in README.md. MIB
ranks edges by their signed score, so that importances are written with "higher means more important": as |score| where
the circuit's own edges are those of the largest |score|, as they are where they are those of the largest score.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.formats import PARTLY_SCORED, circuit_to_json
from gatewise.errors import GatewiseError
from gatewise.files import write_atomically, write_json

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)  # of the edges, for a submission of several circuits
Rank = Literal["auto", "absolute", "signed"]
RANKS: tuple[Rank, ...] = ("auto", "absolute", "signed")
_MODELS = {  # how MIB names the models it knows
    "gpt2": "gpt2",
    "openai-community/gpt2": "gpt2",
    "qwen/qwen2.5-0.5b": "qwen2.5",
    "google/gemma-2-2b": "gemma2",
    "meta-llama/llama-3.1-8b": "llama3",
}
_ALIKE = ("task", "model", "weights", "method", "direction", "parameters", "metric", "ablation")
_PROVENANCE = ("method", "direction", "parameters", "seed", "examples", "model", "weights", "data", "versions")


@dataclass(frozen=True)
class SubmittedCircuit:
    """One circuit to submit. Task and model default to what the circuit's provenance says."""

    circuit: Circuit
    source: str  # where it came from, for messages and README.md
    task: str = ""
    model: str = ""

    def named(self) -> SubmittedCircuit:
        """Return it with its names; an error if they are not known."""
        record = self.circuit.provenance
        task, model = self.task or str(record.get("task", "")), self.model or str(record.get("model", ""))
        for what, name in (("task", task), ("model", model)):
            if not name:
                raise GatewiseError(f"{self.source} does not say which {what} it is for; say it with --{what}.")
        return replace(self, task=task, model=model)

    @property
    def folder(self) -> str:
        """`{task-with-hyphens}_{model}`: the only underscore parts the two."""
        task = _plain(Path(self.task).stem if self.task.endswith((".csv", ".jsonl")) else self.task)
        model = _MODELS.get(self.model.lower(), self.model.rsplit("/", 1)[-1])
        return f"{task}_{_plain(model)}"


def write_submission(
    entries: Sequence[SubmittedCircuit], out: str | Path, *, rank: Rank = "auto"
) -> dict[str, list[Path]]:
    """Write a submission to MIB's circuit track.

    One circuit of a task and model has to have scores, and gives importances. Several give circuits: for each of MIB's
    nine sizes the largest of them that is not larger.

    Args:
        entries: The circuits to submit.
        out: The folder of the submission.
        rank: Whether importances are |score| (`absolute`) or the score (`signed`); `auto` looks at the circuit.

    Returns:
        The files of each folder, by its name.

    Raises:
        GatewiseError: If a circuit cannot be submitted; nothing is written then.
    """
    if rank not in RANKS:
        raise GatewiseError(f"rank is one of {', '.join(RANKS)}, got {rank!r}.")
    grouped: dict[str, list[SubmittedCircuit]] = {}
    for entry in map(SubmittedCircuit.named, entries):
        grouped.setdefault(entry.folder, []).append(entry)
    if not grouped:
        raise GatewiseError("a submission needs at least one circuit.")
    contents = {name: _contents(group, rank) for name, group in grouped.items()}  # before anything is written
    written: dict[str, list[Path]] = {}
    for name, files in contents.items():
        for file, content in files.items():
            path = Path(out) / name / file
            write_json(path, content)
            written.setdefault(name, []).append(path)
    write_atomically(Path(out) / "README.md", _readme(grouped).encode())
    return written


def _contents(group: list[SubmittedCircuit], rank: Rank) -> Mapping[str, dict[str, Any]]:
    """File name -> content."""
    for entry in group:
        graph = entry.circuit.graph
        if graph.qkv != "split" or graph.senders[0] != "input" or graph != group[0].circuit.graph:
            raise GatewiseError(
                f"{entry.source}: {graph!r} cannot be submitted; MIB takes circuits of one transformer with the ports "
                f"q, k and v apart. Load the model with qkv='split'."
            )
    if len(group) == 1:
        return {"importances.json": _importances(group[0], rank)}
    _check_alike(group)
    sizes = sorted(group, key=lambda entry: len(entry.circuit))
    files = {}
    for share in SHARES:
        limit = share * sizes[0].circuit.graph.n_edges
        fitting = [entry for entry in sizes if len(entry.circuit) <= limit]
        if not fitting:
            raise GatewiseError(
                f"{group[0].folder}: a circuit of at most {int(limit):,} edges ({share:.1%}) is needed, the smallest "
                f"given has {len(sizes[0].circuit):,} ({sizes[0].source}). Add one, or give one circuit with scores."
            )
        files[f"{share:g}.json"] = _membership(fitting[-1].circuit)
    return files


def _check_alike(group: Sequence[SubmittedCircuit]) -> None:
    """Circuits of one submission have to come from one kind of search: sizes are all that may differ."""
    for entry in group[1:]:
        for fact in _ALIKE:
            values = [circuit.provenance.get(fact) for circuit in (group[0].circuit, entry.circuit)]
            if None not in values and values[0] != values[1]:
                raise GatewiseError(
                    f"{group[0].source} and {entry.source} would be one submission of {entry.folder}, but their {fact} "
                    f"are {values[0]} and {values[1]}. Submit them apart, to folders of their own (--out)."
                )


def _importances(entry: SubmittedCircuit, rank: Rank) -> dict[str, Any]:
    circuit = entry.circuit
    if circuit.scores is None:
        raise GatewiseError(
            f"{entry.source} has no scores, which importances are made of. Give a circuit with scores, or nine "
            f"circuits of different sizes."
        )
    if PARTLY_SCORED in circuit.provenance:
        raise GatewiseError(
            f"{entry.source} has the scores of its own edges only, and importances need all. Write it with `gatewise "
            f"discover --all-scores`, or circuit.save(path, all_scores=True)."
        )
    signed, absolute = circuit.scores.double(), circuit.scores.double().abs()
    if rank == "auto":
        rank = "absolute" if _agrees(absolute, circuit.mask) else "signed"
        if rank == "signed" and not _agrees(signed, circuit.mask):
            raise GatewiseError(
                f"{entry.source}: the circuit's edges are those of the largest scores neither by size nor by sign. Say "
                f"which order counts, with --rank absolute or --rank signed."
            )
    return _strict(Circuit(circuit.graph, circuit.mask, absolute if rank == "absolute" else signed))


def _agrees(values: Tensor, mask: Tensor) -> bool:
    """Whether the circuit is the edges with the largest values, but for ties."""
    inside, outside = values[mask], values[~mask]
    return not len(inside) or not len(outside) or bool(inside.min() >= outside.max())


def _membership(circuit: Circuit) -> dict[str, Any]:
    content = _strict(circuit)
    content["edges"] = {name: {"in_graph": edge["in_graph"]} for name, edge in content["edges"].items()}
    return content


def _strict(circuit: Circuit) -> dict[str, Any]:
    content = circuit_to_json(circuit)
    return {key: content[key] for key in ("cfg", "nodes", "edges")}


def _plain(name: str) -> str:
    """A name for folders: letters, digits, dots and hyphens."""
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.").lower()
    if not plain:
        raise GatewiseError(f"{name!r} gives no name for a folder; say another with --task or --model.")
    return plain


def _readme(grouped: Mapping[str, Sequence[SubmittedCircuit]]) -> str:
    lines = ["# Circuits for the circuit track of MIB", "", "Made with gatewise; one folder per task and model.", ""]
    for name, group in grouped.items():
        lines += [f"## {name}", ""]
        for entry in group:
            record = entry.circuit.provenance
            origin = ", ".join(f"{key} {record[key]}" for key in _PROVENANCE if key in record) or "unknown"
            lines.append(f"- {len(entry.circuit):,} edges: {origin}")
        lines.append("")
    return "\n".join(lines)
