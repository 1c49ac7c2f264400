"""What docs/findings.md says about gates, one model and one task at a time, as one JSON file each.

    python scripts/gate_findings.py --model smollm2-135m --task ioi --folder docs/results/gates/cells
    python scripts/gate_findings.py --folder docs/results/gates/cells --table

Circuits are searched on `--examples` pairs; everything that is tested is tested on `--test-examples` held-out ones.
Sections that a file has are not made again. `--table` prints the tables of all files in the folder.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from math import isfinite, log
from pathlib import Path
from typing import Any

import torch
from gate_tables import LABELS, tables
from torch import Tensor

import gatewise as gw
from gatewise.engine import Setting
from gatewise.engine.patching.node_patching import LOGITS, PatchedBatches
from gatewise.evaluation import Evaluation
from gatewise.gates import GateTest, GateTests, add_backups, check_minimal, edge_partners, find_backups, replicate
from gatewise.gates.testing.gate_test import RESAMPLES
from gatewise.gates.testing.harsanyi import gate_index, index_label
from gatewise.gates.testing.partners import draw_orders, exact_partners, local_and_downstream
from gatewise.statistics import percentile_interval, rank_correlation, ratio_interval, resampling_weights
from gatewise_paper.measures.edge_indices import EdgeIndices, edge_indices

TAU = {"ioi": 0.02, "gt": 0.02, "sa": 0.01}  # ACDC's, in nats: some 50 to 100 edges in each direction
EDGE_FLOOR = 0.005  # of the logit difference: single edges are smaller than groups
HALF = log(2)  # by how much the log of matched effects may differ
QUALITIES = {"faithful": "faithfulness", "complete": "completeness"}
NAMED = 3  # edges whose partners are named
# No task but ioi has several templates or corruptions; these say the same in other words.
OTHER_WORDS = {
    "gt": (("lasted from the year", "began in the year"), (" to the year", " and ended in the year")),
    "sa": (("", "I heard that "),),
}


@dataclass(frozen=True)
class Cell:
    """One model on one task, and the circuits that all sections are about."""

    model: gw.Model
    task: gw.Task
    options: argparse.Namespace

    @cached_property
    def eap(self) -> gw.Gates:
        return gw.find_gates(self.model, self.task.train, "eap", edges=self.options.edges, joint=False)

    @cached_property
    def acdc(self) -> gw.Gates:
        tau = self.options.tau or TAU[self.task.name]
        pairs = self.task.train[: self.options.acdc_examples]
        return gw.find_gates(self.model, pairs, "acdc", threshold=tau, joint=False)

    @cached_property
    def parts(self) -> tuple[Tensor, Tensor]:
        """Local and downstream part of s_ns - s_dn, and s_ns and s_dn, on the search pairs. [2, edge] each"""
        found = local_and_downstream(PatchedBatches(Setting(self.model, self.task.train)))
        return self.model.graph.vector(found[0]), self.model.graph.vector(found[1])

    @cached_property
    def held_out(self) -> PatchedBatches:
        return PatchedBatches(Setting(self.model, self.task.test))

    @cached_property
    def indices(self) -> EdgeIndices:
        """Exact, on held-out pairs: of all labelled edges, and of the next ones in rank."""
        chosen = self.eap.sound | self.acdc.sound
        strength = torch.where(chosen.mask, -1.0, self.parts[1].abs().amax(dim=0))
        following = strength.topk(min(2 * self.options.edges, len(strength) - len(chosen))).indices.tolist()
        return edge_indices(self.model, self.task.test, chosen | self.model.graph.circuit(following))

    @cached_property
    def grouped(self) -> GateTests:
        """Groups of the circuit's edges, tested on held-out pairs."""
        options = {"of": self.eap.sound, "most": self.options.most}
        return gw.test_gates(self.model, self.task.train, test=self.task.test, **options)

    def strongest_nodes(self, count: int) -> list[str]:
        """Heads and MLPs by what all their edges of the circuit are worth together."""
        graph, kept = self.model.graph, self.eap.sound.mask
        worth = torch.zeros(len(graph.senders), dtype=torch.float64)
        worth.index_add_(0, graph.edge_sender[kept], self.parts[1].mean(dim=0)[kept])
        worth[graph.sender_slices[0]] = 0.0
        return [graph.senders[i] for i in worth.abs().topk(min(count, len(worth))).indices.tolist()]


def measure(model: gw.Model, options: argparse.Namespace, path: Path) -> None:
    """All that is said about one cell, section by section; those that the file has are not made again."""
    sizes = {"examples": options.examples, "test_examples": options.test_examples, "seed": options.seed}
    cell = Cell(model, gw.task(options.task, model, **sizes), options)
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"cpu_seconds": {}}
    found["about"] = {key: value for key, value in vars(options).items() if key not in ("folder", "table")}
    found["about"] |= {name: version(name) for name in ("torch", "transformers")}
    found["about"] |= {"threads": torch.get_num_threads(), "tau": options.tau or TAU[cell.task.name]}
    for name, section in SECTIONS.items():
        if name not in found:
            started = time.process_time()
            found[name] = section(cell)
            found["cpu_seconds"][name] = round(time.process_time() - started, 1)
            print(f"{name}: {found['cpu_seconds'][name]} s", flush=True)
            path.write_text(json.dumps(found, indent=1) + "\n")


def split(cell: Cell, labelled: gw.Gates) -> dict[str, Any]:
    """The split's labels and scores against exact gate indices at the receiver, beside those of matched edges."""
    arising, scores = cell.parts
    exact, place = cell.indices, {edge: i for i, edge in enumerate(cell.indices.edges)}
    gamma, effect = exact.gamma(0.0), torch.maximum(exact.ns.abs(), exact.dn.abs())
    own = gate_index(scores[0], scores[1])[list(exact.edges)]
    labels = {place[edge]: kind for kind in LABELS for edge in labelled.by_type[kind].indices}  # type: ignore[index]
    mine = list(labels)
    order = torch.tensor([{"AND": 1.0, "OR": -1.0, "ADDER": 0.0}[labels[i]] for i in mine])
    large = [i for i in mine if float(effect[i]) > EDGE_FLOOR]
    twins = matched(cell, mine, effect)
    local = arising[0].abs() / (arising[0].abs() + arising[1].abs()).clamp(min=1e-300)
    sums = arising[:, [exact.edges[i] for i in mine]].abs().sum(dim=1)
    by_label = {}
    for kind in LABELS:
        some = [i for i in mine if labels[i] == kind]
        with_twin = [i for i in some if i in twins]
        differences = [float(gamma[i] - gamma[twins[i]]) for i in with_twin]
        by_label[kind] = {
            "edges": len(some),
            "mean_gamma": mean(gamma[some]),
            "median_local_share": median(local[[exact.edges[i] for i in some]]),
            "matched": len(with_twin),
            "matched_gamma": mean(gamma[[twins[i] for i in with_twin]]),
            "above_matched": span(ratio_interval(differences, [1.0] * len(differences))),
        }
    return {
        "ns": len(labelled.ns),
        "dn": len(labelled.dn),
        "local_share": float(sums[0] / sums.sum()),
        "label_correlation": rank_correlation(order, gamma[mine]),
        "score_correlation": rank_correlation(own[mine], gamma[mine]),
        "score_correlation_above_floor": rank_correlation(own[large], gamma[large]),
        "score_correlation_matched": rank_correlation(own[list(twins.values())], gamma[list(twins.values())]),
        "edges_above_floor": len(large),
        "by_label": by_label,
    }


def matched(cell: Cell, mine: Sequence[int], effect: Tensor) -> dict[int, int]:
    """For each labelled edge one without a label, into the same sublayer and of about the same effect at its
    receiver."""
    graph, edges = cell.model.graph, cell.indices.edges
    taken = cell.eap.sound | cell.acdc.sound
    node = [graph.port_sender[int(graph.edge_port[edge])] for edge in edges]
    sublayer = [len(graph.sublayers) - 1 if one < 0 else graph.sublayer_of_sender[one] for one in node]
    size = effect.clamp(min=1e-12).log().tolist()
    free = {i for i, edge in enumerate(edges) if not bool(taken.mask[edge])}
    found = {}
    for i in sorted(mine, key=lambda one: -size[one]):
        near = [j for j in free if sublayer[j] == sublayer[i] and abs(size[j] - size[i]) < HALF]
        if near:
            found[i] = min(near, key=lambda j: (abs(size[j] - size[i]), j))
            free.remove(found[i])
    return found


def labels_of_edges(exact: EdgeIndices) -> list[str]:
    """How each edge acts beside all others of its receiver, by the interval of its gate index over pairs."""
    weights = resampling_weights(len(exact.total_effect), RESAMPLES)
    ns, dn = exact.effects @ weights / (exact.total_effect @ weights)  # [edge, resample] each
    low, high = percentile_interval(gate_index(ns, dn))
    return list(map(index_label, exact.gamma(EDGE_FLOOR).tolist(), low.tolist(), high.tolist()))


def partners(cell: Cell, labelled: gw.Gates) -> dict[str, Any]:
    """Where the partner of an AND or OR label is.

    At the receiver: there, on held-out pairs, the edge acts as its label says, by more than a factor of two. Elsewhere:
    it does not, but its scores differ as the label says by that factor, so that the difference arises downstream. None:
    they do not, and the label is the cut's between found and not found.
    """
    exact = cell.indices
    acts = dict(zip(exact.edges, labels_of_edges(exact), strict=True))
    own = gate_index(cell.parts[1][0], cell.parts[1][1])
    found: dict[str, Any] = {}
    for kind in ("AND", "OR"):
        edges = labelled.by_type[kind].indices  # type: ignore[index]
        where = {}
        for edge in edges:
            by_scores = index_label(*[float(own[edge])] * 3)
            where[edge] = "receiver" if acts[edge] == kind else "elsewhere" if by_scores == kind else "none"
        found[kind] = {
            "where": dict(Counter(where.values())),
            "acts": dict(Counter(acts[edge] for edge in edges)),
            "ports": dict(Counter(partner_ports(cell, [e for e in edges if where[e] == "receiver"]).values())),
        }
    return found


def named_partners(cell: Cell) -> list[dict[str, Any]]:
    """With whom the edges into heads act whose effects differ most between the two directions at the receiver."""
    exact, names = cell.indices, cell.model.graph.edges
    order = (exact.ns.abs() - exact.dn.abs()).abs().argsort(descending=True).tolist()
    edges = [names[exact.edges[i]] for i in order if names[exact.edges[i]].endswith(">")][:NAMED]
    found = [edge_partners(cell.model, cell.task.train, edge, orders=2) for edge in edges]
    return [
        {"edge": one.edge, "ns": one.ns, "dn": one.dn, "with": {name: one.exact[name] for name in one.strongest[:4]}}
        for one in found
    ]


def partner_ports(cell: Cell, edges: Iterable[int]) -> dict[int, str]:
    """Whether n - d of an edge into a head arises with another port of it or with its own; of other nodes, its own."""
    graph = cell.model.graph
    found: dict[int, str] = {}
    by_node: dict[int, list[int]] = {}
    for edge in edges:
        by_node.setdefault(graph.port_sender[int(graph.edge_port[edge])], []).append(edge)
    for node, some in by_node.items():
        ports = [] if node == LOGITS else list(graph.ports_of_sender[node])
        if len(ports) < 2:
            found |= dict.fromkeys(some, "own")
            continue
        kept = graph.edge_index[ports] >= 0
        masks = torch.stack([kept & (torch.arange(len(ports)) == place)[:, None] for place in range(len(ports))])
        single = torch.stack([graph.edge_index[ports] == edge for edge in some])
        changes = exact_partners(cell.held_out, node, masks, single, draw_orders(len(ports), 6, 0))[0]
        for row, edge in zip(changes, some, strict=True):
            largest = ports[int(row.abs().argmax())]
            found[edge] = "own" if largest == int(graph.edge_port[edge]) else "another"
    return found


def gates(cell: Cell) -> dict[str, Any]:
    """Whole ports of all heads, and groups of the circuit's edges; and how many of them come back on other pairs."""
    more = {"test": cell.task.test, "most": cell.options.most}
    whole = gw.test_gates(cell.model, cell.task.train, groupings=["ports"], **more)
    again = replication(cell, [*whole, *cell.grouped])
    return {"whole ports": tested_gates(whole), "circuit": tested_gates(cell.grouped), "replication": again}


def tested_gates(found: GateTests) -> dict[str, Any]:
    rows = [gate(one) | {"significant": one.significant} for one in found.tested]
    return {"looked_at": found.looked_at, "tested": rows}


def gate(one: GateTest) -> dict[str, Any]:
    """What is kept of a gate: its largest interaction, and how its groups act."""
    names, size = one.strongest_interaction
    ports = {name: sorted({edge.partition("->")[2] for edge in edges}) for name, edges in one.groups.items()}
    return {
        "receiver": one.receiver,
        "rest": one.rest,
        "set": sorted(names),
        "by": "ports" if set(names) <= set("QKV") else "partners",
        "across": len({port for name in names for port in ports[name]}) > 1,
        "value": span(size),
        "share_of_all": finite(abs(size.value) / max(abs(value) for value in one.effects.values())),
        "label": one.label,
        "conditional": one.conditional,
        "p": one.p_value,
        "confirmed": None if one.confirmed is None else bool(one.confirmed),
        "on_logit_diff": None if one.confirmed is None else {s: span(v) for s, v in one.confirmed.end_to_end.items()},
        "groups": {
            name: {"edges": len(edges), "ports": ports[name], "gamma": finite(one.gamma[name])}
            | {"acts": one.group_labels[name], "alone": one.dn[name]}
            for name, edges in one.groups.items()
        },
    }


def replication(cell: Cell, found: Sequence[GateTest]) -> dict[str, Any]:
    """The gates that stand again, on other pairs: rates, and how many there are."""
    model, options, name = cell.model, cell.options, cell.task.name
    sizes = {"examples": options.examples, "test_examples": options.test_examples}
    others = {"other pairs": gw.task(name, model, **sizes, seed=options.seed + 1).test}
    if name in OTHER_WORDS:
        others["other words"] = reworded(model, cell.task.test, OTHER_WORDS[name])
    if name == "ioi":
        others["second corruption"] = gw.task("ioi:corruption=all-names", model, **sizes, seed=options.seed).test
    again = replicate(model, others, found)
    rates = {key: {"gates": len(found), "stand": rate} for key, rate in again.rates.items()}
    for key, rate in again.label_rates.items():
        rates[key]["same_label"] = rate
    if name == "ioi":  # searched and tested on half of the templates, and again on the others
        halves = gw.task("ioi", model, **sizes | {"examples": 3 * options.examples}, held_out="templates")
        search, test = halves.train[: options.examples], halves.train[options.examples :]
        circuit = gw.find_gates(model, search, "eap", edges=options.edges, joint=False).sound
        first = gw.test_gates(model, search, test=test, of=circuit, most=options.most, confirm=False)
        again = replicate(model, {"other templates": halves.test}, first)
        rates["other templates"] = {"gates": len(first), "stand": again.rates["other templates"]}
        rates["other templates"]["same_label"] = again.label_rates["other templates"]
    return {key: {name: finite(value) for name, value in row.items()} for key, row in rates.items()}


def reworded(model: gw.Model, pairs: gw.Pairs, words: Sequence[tuple[str, str]]) -> gw.Pairs:
    """The same pairs in another template. An empty word is the beginning of the sentence."""

    def said(text: str) -> str:
        for old, new in words:
            text = text.replace(old, new, 1) if old else new + text[0].lower() + text[1:]
        return text

    rows = [(said(one.clean), said(one.corrupted), list(one.correct), list(one.incorrect)) for one in pairs]
    return gw.Pairs.from_text(rows, model, name=f"{pairs.name} in other words")


def backups(cell: Cell) -> dict[str, Any]:
    nodes = cell.strongest_nodes(cell.options.nodes)
    found = find_backups(cell.model, cell.task.test[: 2 * cell.options.examples], nodes, most=3)
    rows = [
        {"node": one.node, "stand_in": one.backup}
        | {"alone": one.loss, "other": one.backup_loss, "both": one.joint_loss, "significant": one.significant}
        | {"interplay": span(one.self_repair), "frozen": span(one.frozen_self_repair)}
        for one in found
    ]
    return {"nodes": nodes, "tested": rows}


def by_method(measure: Callable[[Cell, gw.Gates], dict[str, Any]]) -> Callable[[Cell], dict[str, Any]]:
    return lambda cell: {"eap": measure(cell, cell.eap), "acdc": measure(cell, cell.acdc)}


def completions(cell: Cell) -> list[dict[str, Any]]:
    return [completion(cell, size) for size in cell.options.sizes]


def completion(cell: Cell, size: int) -> dict[str, Any]:
    """A circuit of Ns+Dn, a fifth of it replaced by what appears when its strongest nodes are switched."""
    model, train = cell.model, cell.task.train
    base = gw.discover(model, train, "eap", "ns+dn", edges=size - size // 5)
    nodes = cell.strongest_nodes(cell.options.nodes)
    completed = add_backups(model, train[: cell.options.acdc_examples], base, nodes=nodes, most=size - len(base))
    plain = gw.discover(model, train, "eap", "ns+dn", edges=len(completed))
    both = gw.evaluate(model, cell.task.test, [completed, plain], random_circuits=0)
    found: dict[str, Any] = {"edges": len(completed), "added": len(completed) - len(base)}
    found["other_edges"] = len(completed - plain)
    for name, one, paired in zip(("completed", "ns+dn"), both, reversed(both), strict=True):
        found[name] = {key: finite(getattr(one, key)) for key in ("destroyed", "recovered", "recovered_logit_diff")}
        found[name] |= {"completeness": one.completeness.mean, "faithfulness": one.faithfulness.mean}
        if name == "completed":  # with the interval over pairs of what is gained
            gains = [a["complement_kl_to_full"] - b["complement_kl_to_full"] for a, b in zip_examples(one, paired)]
            found["gain"] = span(ratio_interval(gains, [1.0] * len(gains)))
    return found


def zip_examples(one: Evaluation, other: Evaluation) -> Iterator[tuple[dict[str, float], dict[str, float]]]:
    return zip(one.per_example, other.per_example, strict=True)


def minimal(cell: Cell) -> dict[str, Any]:
    """Corollary 1: what is saved and lost by thinning the gates of the split, and the tested ones."""
    tested = cell.eap.with_tested(cell.grouped)
    found: dict[str, Any] = {}
    for name, labels in (("split", None), ("tested", "tested")):
        for one in check_minimal(cell.model, cell.task.test, tested, labels) if labels is None or tested.tested else ():
            found[f"{name}, {one.aim}"] = {
                "edges": one.sound.edges,
                "saved": one.edges_saved,
                "thinned": len(one.gate_losses),
                "sound": getattr(one.sound, QUALITIES[one.aim]),
                "minimal": getattr(one.minimal, QUALITIES[one.aim]),
                "largest_loss": max(one.gate_losses, default=0.0),
            }
    return found


SECTIONS: dict[str, Callable[[Cell], Any]] = {
    "split": by_method(split),
    "partners": by_method(partners),
    "named partners": named_partners,
    "gates": gates,
    "backups": backups,
    "completion": completions,
    "minimal": minimal,
}


def span(found: Any) -> list[float | None]:
    """An interval as [value, low, high]."""
    return [finite(found.value), finite(found.low), finite(found.high)]


def finite(value: float) -> float | None:
    return float(value) if isfinite(value) else None


def mean(values: Tensor) -> float | None:
    known = values[~values.isnan()]
    return float(known.mean()) if len(known) else None


def median(values: Tensor) -> float | None:
    return float(values.median()) if len(values) else None


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--model", default="smollm2-135m")
    found.add_argument("--task", default="ioi")
    found.add_argument("--edges", type=int, default=300, help="of EAP's circuit in each direction")
    found.add_argument("--sizes", type=int, nargs="+", default=[100], help="edges of the circuits to complete")
    found.add_argument("--tau", type=float, help="ACDC's threshold in both directions")
    found.add_argument("--examples", type=int, default=16)
    found.add_argument("--test-examples", type=int, default=64)
    found.add_argument("--acdc-examples", type=int, default=8)
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--most", type=int, default=12, help="receivers that are tested for each grouping")
    found.add_argument("--nodes", type=int, default=6, help="whose backups are looked for")
    found.add_argument("--folder", type=Path, required=True)
    found.add_argument("--table", action="store_true", help="print what is in the folder")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    if options.table:
        print(tables([json.loads(path.read_text()) for path in sorted(options.folder.glob("*-*.json"))]))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    measure(gw.load_model(options.model), options, options.folder / f"{options.model}-{options.task}.json")


if __name__ == "__main__":
    main()
