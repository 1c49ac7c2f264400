"""Set-difference labels: AND = edges found by noising only, OR = by denoising only, ADDER = by both.

The plain rule is that of Chen et al. 2025 ("Rethinking Circuit Completeness in Language Models"). By its Table 1, ACDC
and Edge Pruning under Dn also find one edge of each AND gate, and under Ns one of each OR gate, so the plain rule calls
that edge ADDER. The *repaired* rule (CLUE's, Chen et al. 2026) lets a lone ADDER edge join the AND or OR edges of its
receiver, and labels no gate of fewer than two edges.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, reduce
from itertools import permutations
from operator import and_, or_
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

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
# Where labels of edges come from: given by edge, the tested gates of groups, or (None) the circuits of both directions.
LabelSource: TypeAlias = Mapping[str, str] | Literal["tested"] | None
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
    """A tested gate, as kept beside set-difference labels: groups of edges into a node, the effect of every set."""

    receiver: str
    label: str
    groups: Mapping[str, tuple[str, ...]]
    values: tuple[float, ...]  # normalised effects by the bits of a set, the groups in order and then the rest


@dataclass(frozen=True)
class SeedOverlap:
    """How much circuits of the two directions overlap, beside those of two seeds of one direction.

    Attributes:
        directions: Mean Jaccard index of a noising and a denoising circuit of different seeds.
        ns: That of noising circuits of different seeds.
        dn: That of denoising circuits of different seeds.
        seeds: How many seeds were compared.
    """

    directions: float
    ns: float
    dn: float
    seeds: int

    @property
    def beyond_noise(self) -> bool:
        """Whether directions differ more than seeds do; if not, AND and OR would be labels of noise."""
        return self.directions < min(self.ns, self.dn)

    def __str__(self) -> str:
        text = (
            f"{self.seeds} seeds share {self.ns:.0%} of their edges by noising and {self.dn:.0%} by denoising; the two "
            f"directions share {self.directions:.0%}"
        )
        if self.beyond_noise:
            return f"{text}, fewer: only edges that all seeds agree on have a label."
        return f"{text}, no fewer: which direction found an edge is seed noise, and no edge is labelled AND or OR."


@dataclass(frozen=True, repr=False)
class Gates:
    """A circuit from noising and one from denoising, their edges labelled AND, OR or ADDER."""

    ns: Circuit
    dn: Circuit
    by_type: Mapping[GateType, Circuit] = field(hash=False)
    rule: Rule = "plain"
    grouping: Grouping = "port"
    joint: Circuit | None = None  # the paper's Ns+Dn circuit, if it was searched too
    tested: tuple[GroupGate, ...] = field(default=(), hash=False)  # significant gates of groups, the strongest first
    seed_overlap: SeedOverlap | None = None  # of methods that another seed changes

    @property
    def graph(self) -> Graph:
        """The graph that both circuits belong to."""
        return self.ns.graph

    @property
    def sound(self) -> Circuit:
        """The logically sound circuit as a union: everything that either direction found."""
        return self.ns | self.dn

    @property
    def unlabelled(self) -> Circuit:
        """Edges of the sound circuit without a label: those on which seeds do not agree, and those of gates of too few
        edges, under the repaired rule."""
        return self.sound - Circuit.from_indices(self.graph, self.labelled.kinds)

    @cached_property
    def labelled(self) -> Labelled:
        """The sound circuit with its edges' types; |score| in the direction that found an edge, the larger of two."""
        kinds = {edge: kind for kind in GATE_TYPES for edge in self.by_type[kind].indices}
        scores = None
        if self.ns.scores is not None and self.dn.scores is not None:
            sizes = torch.stack([self.ns.scores, self.dn.scores]).double().abs()
            in_circuit = torch.stack([self.ns.mask, self.dn.mask])
            scores = torch.where(in_circuit | ~self.sound.mask, sizes, 0.0).amax(dim=0)
        return Labelled(Circuit(self.graph, self.sound.mask, scores), kinds)

    def label(self, edge: str) -> GateType | None:
        """Look up the type of an edge.

        Args:
            edge: Name of the edge.

        Returns:
            Its type; None if it has no label.
        """
        return next((kind for kind in GATE_TYPES if edge in self.by_type[kind]), None)

    @cached_property
    def items(self) -> tuple[Gate, ...]:
        """All gates, from the input to the output; of one receiver AND, OR, ADDER."""
        gates = []
        for receiver, by_type in _by_receiver(self.graph, self.by_type, self.grouping).items():
            for kind, edges in by_type.items():
                gates.append(Gate(receiver, kind, tuple(self.graph.edges[edge] for edge in edges)))
        return tuple(gates)

    def __iter__(self) -> Iterator[Gate]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def proportions(self) -> dict[GateType, float]:
        """Count how the labelled edges divide.

        Returns:
            Share of each type.
        """
        total = sum(len(self.by_type[kind]) for kind in GATE_TYPES)
        return {kind: len(self.by_type[kind]) / total if total else 0.0 for kind in GATE_TYPES}

    def layer_span(self) -> dict[GateType, float]:
        """Measure how far edges reach.

        Returns:
            Mean number of layers that the edges of each type cross, the input being layer -1; NaN without edges.
        """
        graph = self.graph
        crossed = torch.tensor(graph.port_layer)[graph.edge_port] - torch.tensor(graph.sender_layer)[graph.edge_sender]
        return {kind: float(crossed[self.by_type[kind].mask].double().mean()) for kind in GATE_TYPES}

    def joint_outside(self) -> float | None:
        """Compare the Ns+Dn circuit with the circuits of both directions.

        Returns:
            Share of its edges that neither direction found alone; None if it was not searched.
        """
        return None if self.joint is None else len(self.joint - self.sound) / max(1, len(self.joint))

    def with_tested(self, tests: Iterable[GateTest]) -> Gates:
        """Add tested gates of groups.

        Args:
            tests: Such as `test_gates` gives them: iterating over it gives the significant ones.

        Returns:
            The same gates with these in `tested`.
        """
        return replace(self, tested=tuple(test.gate for test in tests))

    def minimal_faithful(self, labels: LabelSource = None) -> Circuit:
        """Keep what faithfulness needs, by Corollary 1: all AND and ADDER edges, one edge of each OR gate.

        Args:
            labels: Edge -> label; "tested" for the tested gates of groups; by default the set-difference labels.

        Returns:
            The smallest faithful part of the sound circuit, see `gatewise.gates.minimal`.
        """
        from gatewise.gates.minimal import minimal_circuit

        return minimal_circuit(self, "faithful", labels)

    def minimal_complete(self, labels: LabelSource = None) -> Circuit:
        """Keep what completeness needs, by Corollary 1: all OR and ADDER edges, one edge of each AND gate.

        Args:
            labels: Edge -> label; "tested" for the tested gates of groups; by default the set-difference labels.

        Returns:
            The smallest complete part of the sound circuit, see `gatewise.gates.minimal`.
        """
        from gatewise.gates.minimal import minimal_circuit

        return minimal_circuit(self, "complete", labels)

    def save(self, path: str | Path) -> None:
        """Write one self-describing file: the circuits with their scores and provenance, the labels and the rule.

        It is a safetensors file: see `gatewise.archive`. `export` writes what EAP-IG and MIB tools read.

        Args:
            path: Any name that does not end with .json.

        Raises:
            GatewiseError: The name promises JSON.
        """
        check_gates_path(path)
        named = {**self._searched, **{str(kind): circuit for kind, circuit in self.by_type.items()}}
        plain, arrays = pack_circuits(list(named.values()))
        head: dict[str, Any] = {"kind": "gates", "format": _FORMAT, "rule": self.rule, "grouping": self.grouping}
        if self.seed_overlap is not None:
            head["seed_overlap"] = asdict(self.seed_overlap)
        if self.tested:
            head["tested"] = [asdict(gate) for gate in self.tested]
        write_atomically(Path(path), pack({**head, "names": list(named), **plain}, arrays))

    def export(self, folder: str | Path) -> list[Path]:
        """Write the circuits as JSON that EAP-IG and MIB tools read.

        Args:
            folder: Where to.

        Returns:
            The files, such as `ns-500.json`.
        """
        named = {Path(folder) / f"{name}-{len(circuit)}.json": circuit for name, circuit in self._searched.items()}
        for path, circuit in named.items():
            circuit.save(path, all_scores=True)
        return list(named)

    @property
    def _searched(self) -> dict[str, Circuit]:
        circuits = {"ns": self.ns, "dn": self.dn}
        return circuits if self.joint is None else {**circuits, "ns+dn": self.joint}

    def draw(self, path: str | Path, *, max_edges: int = 300, title: str | None = None) -> None:
        """Draw the sound circuit, its edges coloured by gate type.

        Args:
            path: File to write; its suffix decides the format: .svg, .pdf or .png.
            max_edges: Edges to draw at most, the strongest first.
            title: Of the figure.
        """
        from gatewise.circuits.drawing import draw

        draw(self.labelled, path, max_edges=max_edges, title=title)

    @classmethod
    def load(cls, path: str | Path) -> Gates:
        """Read what `save` wrote.

        Args:
            path: The file.

        Returns:
            The gates.

        Raises:
            GatewiseError: No such file, or not one of gates, or a damaged one.
        """
        return cls.from_bytes(read_bytes(Path(path), "a gates file"), path)

    @classmethod
    def from_bytes(cls, content: bytes, path: str | Path) -> Gates:
        """Read the content of a file that `save` wrote.

        Args:
            content: What is in the file.
            path: Its name, for errors.

        Returns:
            The gates.

        Raises:
            GatewiseError: It is not a file of gates, or damaged.
        """
        try:
            plain, arrays = unpack(content)
            if (plain["kind"], plain["format"]) != ("gates", _FORMAT):
                raise DamagedError(f"it holds {shown(plain['kind'])} of format {shown(plain['format'])}")
            named = dict(zip(plain["names"], unpack_circuits(plain, arrays), strict=True))
            by_type: dict[GateType, Circuit] = {kind: named[kind] for kind in GATE_TYPES}
            rules = _check_choice(plain["rule"], Rule), _check_choice(plain["grouping"], Grouping)
            tested = tuple(_read_group_gate(named["ns"].graph, entry) for entry in plain.get("tested", []))
            seeds = _read_seed_overlap(plain["seed_overlap"]) if "seed_overlap" in plain else None
            gates = cls(named["ns"], named["dn"], by_type, *rules, named.get("ns+dn"), tested, seeds)
        except (DamagedError, ValueError, KeyError, TypeError, AttributeError, GatewiseError) as error:
            raise GatewiseError(
                f"{path} is not a gates file of format {_FORMAT}, or is damaged: {error}. gates.save(path) and "
                f"`gatewise gates --out` write one."
            ) from error
        if not all(labelled <= gates.sound for labelled in by_type.values()):
            raise GatewiseError(f"{path} labels edges that neither of its two circuits has. Save it again.")
        return gates

    def venn(self) -> str:
        """Draw with letters how the two circuits overlap.

        Returns:
            One line.
        """
        ns_only, shared, dn_only = len(self.ns - self.dn), len(self.ns & self.dn), len(self.dn - self.ns)
        total = max(1, ns_only + shared + dn_only)
        bar = ""
        for letter, count in (("&", ns_only), ("+", shared), ("|", dn_only)):
            bar += letter * max(1 if count else 0, round(60 * count / total))
        return f"ns only {ns_only} [{bar}] {dn_only} dn only, {shared} in both"

    def __repr__(self) -> str:
        edges = ", ".join(f"{len(self.by_type[kind])} {kind}" for kind in GATE_TYPES)
        counts = Counter(gate.type for gate in self)
        gates = ", ".join(f"{counts[kind]} {kind}" for kind in GATE_TYPES)
        largest = sorted(self, key=lambda gate: -len(gate.edges))[:3]
        lines = [f"<Gates ({self.rule} rule): {edges} edges in {gates} gates", f"  {self.venn()}"]
        if self.seed_overlap is not None:
            lines.append(f"  {self.seed_overlap}")
        lines += [f"  {gate.type:5} {_short(repr(gate))}" for gate in largest]
        return "\n".join(lines) + ">"

    def _repr_html_(self) -> str:
        from gatewise.display import card

        shares, rows = self.proportions(), []
        for kind in GATE_TYPES:
            gates = [gate for gate in self if gate.type == kind]
            largest = _short(repr(max(gates, key=lambda gate: len(gate.edges)))) if gates else ""
            rows.append((kind, f"{len(self.by_type[kind]):,}", f"{shares[kind]:.0%}", f"{len(gates):,}", largest))
        summary = f"{len(self.sound):,} edges by the {self.rule} rule: {self.venn()}"
        return card("Gates", summary, ("type", "edges", "share", "gates", "largest gate"), rows)


def label_gates(
    ns: Circuit,
    dn: Circuit,
    *,
    rule: Rule = "plain",
    by: Grouping = "port",
    joint: Circuit | None = None,
    other_seeds: Sequence[tuple[Circuit, Circuit]] = (),
) -> Gates:
    """Label every edge of a noising and a denoising circuit AND, OR or ADDER, by which of them has it.

    Args:
        ns: The circuit that noising found.
        dn: The circuit that denoising found, with the same weights and pairs.
        rule: "plain", the paper's: AND only in ns, OR only in dn, ADDER in both. "repaired", CLUE's: a lone ADDER edge
            joins the AND or OR edges of its receiver, and gates of one edge have no label.
        by: What a gate's edges go into: a "port" or a "node".
        joint: The paper's Ns+Dn circuit, to be kept with the gates.
        other_seeds: Noising and denoising circuits that other seeds found, of the same sizes. Only edges on which all
            seeds agree have a label, and none is AND or OR unless the directions differ more than the seeds do.

    Returns:
        The gates.

    Raises:
        GatewiseError: Circuits of different graphs, weights or pairs, or of another direction; an unknown rule.
    """
    _check_choice(rule, Rule)
    _check_choice(by, Grouping)
    for pair in ((ns, dn), *other_seeds):
        _check_circuits(*pair)
    noised, denoised = [ns, *(pair[0] for pair in other_seeds)], [dn, *(pair[1] for pair in other_seeds)]
    by_type: dict[GateType, Circuit] = {
        "AND": _in_all(noised) - _in_any(denoised),
        "OR": _in_all(denoised) - _in_any(noised),
        "ADDER": _in_all(noised) & _in_all(denoised),
    }
    overlap = _seed_overlap(noised, denoised) if other_seeds else None
    if overlap is not None and not overlap.beyond_noise:
        by_type |= {"AND": ns.graph.empty(), "OR": ns.graph.empty()}
    if rule == "repaired":
        by_type = _repaired(ns.graph, by_type, by)
    return Gates(ns, dn, by_type, rule, by, joint, seed_overlap=overlap)


def _in_all(circuits: Sequence[Circuit]) -> Circuit:
    return reduce(and_, circuits)


def _in_any(circuits: Sequence[Circuit]) -> Circuit:
    return reduce(or_, circuits)


def _seed_overlap(noised: Sequence[Circuit], denoised: Sequence[Circuit]) -> SeedOverlap:
    """Jaccard indices of circuits of different seeds: of one direction, and across directions."""
    across, by_noising, by_denoising = [], [], []
    for i, j in permutations(range(len(noised)), 2):
        across.append(_jaccard(noised[i], denoised[j]))
        by_noising.append(_jaccard(noised[i], noised[j]))
        by_denoising.append(_jaccard(denoised[i], denoised[j]))
    return SeedOverlap(fmean(across), fmean(by_noising), fmean(by_denoising), len(noised))


def _jaccard(a: Circuit, b: Circuit) -> float:
    return len(a & b) / max(1, len(a | b))


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
                f"label_gates(ns, dn) got a circuit found under {made['direction']!r} where {direction!r} was expected."
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
    gates: dict[str, dict[GateType, list[int]]] = {receiver: {} for receiver in graph.receivers(grouping)}
    for kind in GATE_TYPES:
        for receiver, edges in graph.by_receiver(by_type[kind].indices, grouping).items():
            gates[receiver][kind] = edges
    return {receiver: kinds for receiver, kinds in gates.items() if kinds}


def _repaired(graph: Graph, by_type: Mapping[GateType, Circuit], grouping: Grouping) -> dict[GateType, Circuit]:
    """Labels by CLUE's rule, see `label_gates`."""
    masks: dict[GateType, Tensor] = {kind: torch.zeros(graph.n_edges, dtype=torch.bool) for kind in GATE_TYPES}
    for kinds in _by_receiver(graph, by_type, grouping).values():
        # Beside both AND and OR edges nobody knows which of them a lone ADDER edge belongs to.
        if len(kinds.get("ADDER", [])) == 1 and ("AND" in kinds) != ("OR" in kinds):
            other: GateType = "AND" if "AND" in kinds else "OR"
            kinds = {other: [*kinds[other], *kinds["ADDER"]]}
        for kind, edges in kinds.items():
            if len(edges) >= 2:
                masks[kind][edges] = True
    return {kind: Circuit(graph, mask) for kind, mask in masks.items()}


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
    names: list[str] = []
    for number, gates in enumerate(tasks, 1):
        name = str(gates.ns.provenance.get("task", f"task {number}"))
        names.append(name if name not in names else f"{name} ({number})")
    return names


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


def _read_group_gate(graph: Graph, entry: Mapping[str, Any]) -> GroupGate:
    """A tested gate out of a file, its edges and values checked."""
    groups: dict[str, tuple[str, ...]] = {}
    receivers = set()
    for name, edges in entry["groups"].items():
        indices = [graph.index(edge) for edge in edges]
        groups[str(name)] = tuple(graph.edges[index] for index in indices)
        receivers |= {graph.port_node[int(graph.edge_port[index])] for index in indices}
    values = tuple(float(value) for value in entry["values"])
    if receivers != {entry["receiver"]} or len(values) != 2 << len(groups) or not all(map(math.isfinite, values)):
        raise DamagedError(f"its tested gate of {shown(entry['receiver'])} is not one")
    return GroupGate(entry["receiver"], str(entry["label"]), groups, values)


def _read_seed_overlap(entry: Mapping[str, Any]) -> SeedOverlap:
    """What seeds share, out of a file, its numbers checked."""
    directions, ns, dn = (float(entry[name]) for name in ("directions", "ns", "dn"))
    overlap = SeedOverlap(directions, ns, dn, int(entry["seeds"]))
    if not all(0 <= share <= 1 for share in (overlap.directions, overlap.ns, overlap.dn)) or overlap.seeds < 2:
        raise DamagedError("its overlap of seeds is not one")
    return overlap


def _check_choice(value: Any, kind: Any) -> Any:
    """A value of a Literal type, or an error that names the choices."""
    if value not in get_args(kind):
        raise GatewiseError(f"{shown(value)} is none of {', '.join(map(repr, get_args(kind)))}.")
    return value


def _short(text: str, width: int = 100) -> str:
    return text if len(text) <= width else text[: width - 4] + " ..."
