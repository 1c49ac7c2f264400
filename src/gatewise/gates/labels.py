"""Gates by set membership: AND = found by noising only, OR = by denoising only, ADDER = by both.

The plain split is the paper's. By its own Table 1, ACDC and Edge Pruning under Dn also find one edge of each AND gate,
and under Ns one of each OR gate, so the plain split calls that edge ADDER. The *repaired* split (CLUE's rule) lets a
lone ADDER edge join the AND or OR edges of its receiver, and labels no gate of fewer than two edges.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from gatewise.archive import DamagedError, is_arrays, pack, unpack
from gatewise.circuits.circuit import Circuit, Labelled
from gatewise.circuits.formats import load_circuit
from gatewise.circuits.graph import Graph, Grouping
from gatewise.circuits.serialization import pack_circuits, unpack_circuits
from gatewise.errors import GatewiseError
from gatewise.files import read_bytes, read_json, shown, write_atomically
from gatewise.gate_types import GATE_SIGNS, GATE_TYPES, GateType

if TYPE_CHECKING:
    from gatewise.gates.testing.gate_test import GateTest

Rule = Literal["plain", "repaired"]
_FORMAT = 2


@dataclass(frozen=True)
class Gate:
    """The edges of one type into one receiver."""

    receiver: str  # a port, or a node
    type: GateType
    edges: tuple[str, ...]

    @property
    def senders(self) -> tuple[str, ...]:
        return tuple(edge.partition("->")[0] for edge in self.edges)

    def __repr__(self) -> str:
        return f"{self.receiver} = {f' {GATE_SIGNS[self.type]} '.join(self.senders)}"


@dataclass(frozen=True)
class GroupGate:
    """A gate that stood its test: groups of edges into a node, and what every set of them and the rest is worth."""

    receiver: str
    label: str
    groups: Mapping[str, tuple[str, ...]]
    values: tuple[float, ...]  # by the bits of a set, the groups in order and then the rest; normalised effects


@dataclass(frozen=True, eq=False, repr=False)
class Gates:
    """A circuit from noising and one from denoising, split into gates."""

    ns: Circuit
    dn: Circuit
    by_type: Mapping[GateType, Circuit]
    rule: Rule = "plain"
    grouping: Grouping = "port"
    joint: Circuit | None = None  # the paper's Ns+Dn circuit, if it was searched too
    tested: tuple[GroupGate, ...] = ()  # gates of groups that were tested and stand, the strongest first

    @property
    def graph(self) -> Graph:
        return self.ns.graph

    @property
    def sound(self) -> Circuit:
        """The logically sound circuit as a union: everything that either direction found."""
        return self.ns | self.dn

    @property
    def unlabelled(self) -> Circuit:
        """Edges of the sound circuit without a label: gates of too few edges, under the repaired rule."""
        return self.sound - Circuit.from_indices(self.graph, self.labelled.kinds)

    @cached_property
    def labelled(self) -> Labelled:
        """The sound circuit with its edges' types; |score| in the direction that found an edge, the larger of two."""
        kinds = {edge: kind for kind in GATE_TYPES for edge in self.by_type[kind].indices}
        scores = None
        if self.ns.scores is not None and self.dn.scores is not None:
            sizes = torch.stack([self.ns.scores, self.dn.scores]).double().abs()
            found = torch.stack([self.ns.mask, self.dn.mask])
            scores = torch.where(found | ~self.sound.mask, sizes, 0.0).amax(dim=0)
        return Labelled(Circuit(self.graph, self.sound.mask, scores), kinds)

    def label(self, edge: str) -> GateType | None:
        """The type of an edge; None if it has no label."""
        return next((kind for kind in GATE_TYPES if edge in self.by_type[kind]), None)

    @cached_property
    def items(self) -> tuple[Gate, ...]:
        """All gates, from the input to the output; of one receiver AND, OR, ADDER."""
        return tuple(
            Gate(receiver, kind, tuple(self.graph.edges[i] for i in edges))
            for receiver, kinds in _by_receiver(self.graph, self.by_type, self.grouping).items()
            for kind, edges in kinds.items()
        )

    def __iter__(self) -> Iterator[Gate]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def proportions(self) -> dict[GateType, float]:
        """Share of each type among the labelled edges."""
        total = sum(len(self.by_type[kind]) for kind in GATE_TYPES)
        return {kind: len(self.by_type[kind]) / total if total else 0.0 for kind in GATE_TYPES}

    def layer_span(self) -> dict[GateType, float]:
        """Mean number of layers that the edges of each type cross; the input counts as layer -1."""
        graph = self.graph
        crossed = torch.tensor(graph.port_layer)[graph.edge_port] - torch.tensor(graph.sender_layer)[graph.edge_sender]
        return {
            kind: float(crossed[self.by_type[kind].mask].double().mean()) if self.by_type[kind] else float("nan")
            for kind in GATE_TYPES
        }

    def outside(self) -> float | None:
        """Share of the Ns+Dn circuit's edges that neither direction found alone; None if it was not searched."""
        return None if self.joint is None else len(self.joint - self.sound) / max(1, len(self.joint))

    def with_tested(self, found: Iterable[GateTest]) -> Gates:
        """The same with gates that stood their test, such as `test_gates` gives them."""
        return replace(self, tested=tuple(one.gate for one in found))

    def minimal_faithful(
        self,
        labels: Mapping[str, str] | Literal["tested"] | None = None,
        *,
        keep: Literal["strongest", "first"] = "strongest",
    ) -> Circuit:
        """Corollary 1: all AND and ADDER edges, one edge of each OR gate. See `gatewise.gates.minimal`."""
        from gatewise.gates.minimal import minimal_circuit

        return minimal_circuit(self, "faithful", labels, keep=keep)

    def minimal_complete(
        self,
        labels: Mapping[str, str] | Literal["tested"] | None = None,
        *,
        keep: Literal["strongest", "first"] = "strongest",
    ) -> Circuit:
        """Corollary 1: all OR and ADDER edges, one edge of each AND gate. See `gatewise.gates.minimal`."""
        from gatewise.gates.minimal import minimal_circuit

        return minimal_circuit(self, "complete", labels, keep=keep)

    def save(self, path: str | Path) -> None:
        """Write one self-describing file: the circuits with their scores and provenance, the labels and the rule.

        It is a safetensors file: see `gatewise.archive`. `export` writes what EAP-IG and MIB tools read.
        """
        check_gates_path(path)
        named = {**self._searched, **{str(kind): circuit for kind, circuit in self.by_type.items()}}
        plain, arrays = pack_circuits(list(named.values()))
        head: dict[str, Any] = {"kind": "gates", "format": _FORMAT, "rule": self.rule, "grouping": self.grouping}
        if self.tested:
            head["tested"] = [asdict(gate) for gate in self.tested]
        write_atomically(Path(path), pack({**head, "names": list(named), **plain}, arrays))

    def export(self, folder: str | Path) -> list[Path]:
        """Write the circuits as JSON that EAP-IG and MIB tools read, such as `ns-500.json`; returns the files."""
        named = {Path(folder) / f"{name}-{len(circuit)}.json": circuit for name, circuit in self._searched.items()}
        for path, circuit in named.items():
            circuit.save(path)
        return list(named)

    @property
    def _searched(self) -> dict[str, Circuit]:
        found = {"ns": self.ns, "dn": self.dn}
        return found if self.joint is None else {**found, "ns+dn": self.joint}

    def draw(self, path: str | Path, *, max_edges: int = 300, title: str | None = None) -> None:
        """Draw a static figure, .svg, .pdf or .png, with edges coloured by gate type."""
        from gatewise.circuits.drawing import draw

        draw(self.labelled, path, max_edges=max_edges, title=title)

    @classmethod
    def load(cls, path: str | Path) -> Gates:
        """Read what `save` wrote."""
        return cls.from_bytes(read_bytes(Path(path), "a gates file"), path)

    @classmethod
    def from_bytes(cls, content: bytes, path: str | Path) -> Gates:
        """The gates in the content of a file; `path` is named in errors."""
        try:
            plain, arrays = unpack(content)
            if (plain["kind"], plain["format"]) != ("gates", _FORMAT):
                raise DamagedError(f"it holds {shown(plain['kind'])} of format {shown(plain['format'])}")
            named = dict(zip(plain["names"], unpack_circuits(plain, arrays), strict=True))
            by_type: dict[GateType, Circuit] = {kind: named[kind] for kind in GATE_TYPES}
            rules = _one_of(plain["rule"], Rule), _one_of(plain["grouping"], Grouping)
            tested = tuple(_group_gate(named["ns"].graph, entry) for entry in plain.get("tested", []))
            gates = cls(named["ns"], named["dn"], by_type, *rules, named.get("ns+dn"), tested)
        except (DamagedError, ValueError, KeyError, TypeError, AttributeError, GatewiseError) as error:
            raise GatewiseError(
                f"{path} is not a gates file of format {_FORMAT}, or is damaged: {error}. gates.save(path) and "
                f"`gatewise gates --out` write one."
            ) from error
        if not all(labelled <= gates.sound for labelled in by_type.values()):
            raise GatewiseError(f"{path} labels edges that neither of its two circuits has. Save it again.")
        return gates

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Gates):
            return False
        mine, theirs = ((g.ns, g.dn, dict(g.by_type), g.rule, g.grouping, g.joint, g.tested) for g in (self, other))
        return mine == theirs

    def __hash__(self) -> int:
        return hash((self.ns, self.dn, self.rule, self.grouping))

    def venn(self) -> str:
        """How the two circuits overlap, drawn with letters."""
        ns_only, shared, dn_only = len(self.ns - self.dn), len(self.ns & self.dn), len(self.dn - self.ns)
        total = max(1, ns_only + shared + dn_only)
        bar = "".join(
            letter * max(1 if n else 0, round(60 * n / total))
            for letter, n in (("&", ns_only), ("+", shared), ("|", dn_only))
        )
        return f"ns only {ns_only} [{bar}] {dn_only} dn only, {shared} in both"

    def __repr__(self) -> str:
        edges = ", ".join(f"{len(self.by_type[kind])} {kind}" for kind in GATE_TYPES)
        counts = Counter(gate.type for gate in self.items)
        gates = ", ".join(f"{counts[kind]} {kind}" for kind in GATE_TYPES)
        largest = sorted(self.items, key=lambda gate: -len(gate.edges))[:3]
        lines = [f"<Gates ({self.rule} split): {edges} edges in {gates} gates", f"  {self.venn()}"]
        lines += [f"  {gate.type:5} {_short(repr(gate))}" for gate in largest]
        return "\n".join(lines) + ">"

    def _repr_html_(self) -> str:
        from gatewise.display import card

        shares, counts = self.proportions(), Counter(gate.type for gate in self.items)
        rows = []
        for kind in GATE_TYPES:
            largest = max((gate for gate in self if gate.type == kind), key=lambda gate: len(gate.edges), default=None)
            shown = "" if largest is None else _short(repr(largest))
            rows.append((kind, f"{len(self.by_type[kind]):,}", f"{shares[kind]:.0%}", f"{counts[kind]:,}", shown))
        summary = f"{len(self.sound):,} edges by the {self.rule} split: {self.venn()}"
        return card("Gates", summary, ("type", "edges", "share", "gates", "largest gate"), rows)


def check_one_model(tasks: Sequence[Gates]) -> None:
    """An error if gates of several tasks were not found on one model."""
    for other in tasks[1:]:
        if other.graph != tasks[0].graph:
            raise GatewiseError(
                f"the tasks belong to different models, {tasks[0].graph!r} and {other.graph!r}; find all on one model."
            )
    if len({gates.ns.provenance.get("weights") for gates in tasks} - {None}) > 1:
        raise GatewiseError("the gates were found with different weights; find those of all tasks on one model.")


def task_names(tasks: Sequence[Gates]) -> list[str]:
    """What the gates' tasks are called, each by a name of its own."""
    found: list[str] = []
    for place, gates in enumerate(tasks):
        name = str(gates.ns.provenance.get("task", f"task {place + 1}"))
        found.append(name if name not in found else f"{name} ({place + 1})")
    return found


def _group_gate(graph: Graph, entry: Mapping[str, Any]) -> GroupGate:
    """A tested gate out of a file, its edges and values checked."""
    groups = {
        str(name): tuple(graph.edges[graph.index(edge)] for edge in edges) for name, edges in entry["groups"].items()
    }
    into = {graph.port_node[int(graph.edge_port[graph.index(edge)])] for edges in groups.values() for edge in edges}
    values = tuple(float(value) for value in entry["values"])
    if into != {entry["receiver"]} or len(values) != 2 << len(groups) or not all(map(math.isfinite, values)):
        raise DamagedError(f"its tested gate of {shown(entry['receiver'])} is not one")
    return GroupGate(entry["receiver"], str(entry["label"]), groups, values)


def check_gates_path(path: str | Path) -> None:
    """An error if the name of a file for gates promises JSON."""
    if Path(path).suffix == ".json":
        raise GatewiseError(
            f"gates are saved as safetensors, not as JSON: save them to {Path(path).with_suffix('.safetensors')}, or "
            f"write their circuits as JSON with gates.export(folder)."
        )


def load_labelled(path: str | Path, graph: Graph | None = None) -> Circuit | Labelled:
    """Read a gates file, or a circuit file of any tool. `graph`: for Edge-Pruning's list, which names none."""
    return Gates.load(path).labelled if is_arrays(Path(path)) else load_circuit(path, graph)


def load_two(first: str | Path, second: str | Path) -> tuple[Circuit | Labelled, Circuit | Labelled]:
    """Read both; a bare list of edges takes the graph of the other file."""
    if not is_arrays(Path(first)) and isinstance(read_json(Path(first), "a circuit or gates file"), list):
        b = load_labelled(second)
        return load_labelled(first, b.graph), b
    a = load_labelled(first)
    return a, load_labelled(second, a.graph)


def label_gates(
    ns: Circuit, dn: Circuit, *, rule: Rule = "plain", by: Grouping = "port", joint: Circuit | None = None
) -> Gates:
    """Label every edge of a noising and a denoising circuit AND, OR or ADDER."""
    _check_circuits(ns, dn)
    _one_of(rule, Rule)
    _one_of(by, Grouping)
    by_type: dict[GateType, Circuit] = {"AND": ns - dn, "OR": dn - ns, "ADDER": ns & dn}
    if rule == "repaired":
        by_type = _repaired(ns.graph, by_type, by)
    return Gates(ns, dn, by_type, rule, by, joint)


def _check_circuits(ns: Circuit, dn: Circuit) -> None:
    if ns.graph != dn.graph:
        raise GatewiseError(f"the two circuits belong to different graphs, {ns.graph!r} and {dn.graph!r}.")
    for circuit, direction in ((ns, "ns"), (dn, "dn")):
        made = circuit.provenance
        if not made.get("directed", True):
            raise GatewiseError(
                f"{made.get('method')} integrates between the two runs and has no direction, so gates cannot be read "
                f"off its circuits. Use eap, acdc or edge-pruning under 'ns' and 'dn'."
            )
        if made.get("direction", direction) != direction:
            raise GatewiseError(
                f"split_gates(ns, dn) got a circuit found under {made['direction']!r} where {direction!r} was expected."
            )
    for key, what in (("weights", "weights"), ("data", "pairs")):
        if ns.provenance.get(key) != dn.provenance.get(key):
            raise GatewiseError(
                f"the two circuits were found with different {what}; search both directions on the same {what}."
            )


def _by_receiver(
    graph: Graph, by_type: Mapping[GateType, Circuit], grouping: Grouping
) -> dict[str, dict[GateType, list[int]]]:
    """receiver -> type -> edge indices, receivers in the order of ports."""
    found = {kind: graph.by_receiver(by_type[kind].indices, grouping) for kind in GATE_TYPES}
    names = dict.fromkeys(graph.receivers(grouping))
    by_name = {name: {kind: found[kind][name] for kind in GATE_TYPES if name in found[kind]} for name in names}
    return {receiver: kinds for receiver, kinds in by_name.items() if kinds}


def _repaired(graph: Graph, by_type: Mapping[GateType, Circuit], grouping: Grouping) -> dict[GateType, Circuit]:
    masks: dict[GateType, Tensor] = {kind: torch.zeros(graph.n_edges, dtype=torch.bool) for kind in GATE_TYPES}
    for kinds in _by_receiver(graph, by_type, grouping).values():
        if len(kinds.get("ADDER", [])) == 1 and ("AND" in kinds) != ("OR" in kinds):
            other: GateType = "AND" if "AND" in kinds else "OR"
            kinds = {other: [*kinds[other], *kinds["ADDER"]]}
        for kind, edges in kinds.items():
            if len(edges) >= 2:
                masks[kind][edges] = True
    return {kind: Circuit(graph, mask) for kind, mask in masks.items()}


def _one_of(value: Any, kind: Any) -> Any:
    """A value of a Literal type, checked."""
    allowed = kind.__args__
    if value not in allowed:
        raise GatewiseError(f"{shown(value)} is none of {', '.join(map(repr, allowed))}.")
    return value


def _short(text: str, width: int = 100) -> str:
    return text if len(text) <= width else text[: width - 4] + " ..."
