"""Graph study: which functions AND, OR and ADDER gates join, and how far they reach (figsimplegate, figgatecircuit).

Gates are the plain split of the Ns and Dn circuits on IOI; a pair is two heads that send edges of one type to one
receiver. What is measured on pairs (do the two have the same function? how alike do they attend?) is held against
chance: the same with the functions permuted among the heads that have one. What is measured on edges (how many layers
do they cross?) is held against the same with the types permuted among the edges. Circuits of all seeds count together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gatewise.circuits.published import PUBLISHED_GT, PUBLISHED_IOI, Roles
from gatewise.gate_types import GATE_TYPES, GateType
from gatewise.logic.gates import Gates, split_gates
from gatewise.paper.contract import (
    METHOD_NAMES,
    TASK_NAMES,
    Cell,
    Experiment,
    Judgement,
    Outcome,
    Table,
    Verdict,
    grid,
)
from gatewise.paper.experiments.gate_drawings import cases_figure, circuit_figure
from gatewise.paper.roles import (
    ROLES,
    Criteria,
    attention_similarity,
    is_gpt2_small,
    measure_roles,
)

if TYPE_CHECKING:
    from gatewise.circuits.circuit import Circuit
    from gatewise.paper.lab import Lab
    from gatewise.paper.presets import Preset

_TASK = "ioi"
_PERMUTATIONS = 1_000
_FEWEST_PAIRS = 10  # with fewer, nothing is said
_RANDOM_CIRCUITS = 20
_JOINED = ("gates", "pairs of known function", "same function", "pairs of heads", "similarity of attention")
_EARLIER = (
    "Clean and corrupted prompts differ in the second name only, so that everything before it is equal in both runs: "
    "functions that act earlier (previous token heads at the first mention of a name) cannot show in any circuit here."
)


def _methods(preset: Preset) -> list[str]:
    """The paper's first: ACDC. EAP beside it."""
    return [m for m in ("acdc", "eap") if m in preset.methods] or list(preset.methods[:1])


def _cells(preset: Preset) -> list[Cell]:
    cells = grid(preset, tasks=[_TASK], methods=_methods(preset), directions=("ns", "dn"), seeds={**preset.seeds})
    if preset.name == "paper" and "gt" in preset.tasks:  # for the recall of the published circuit
        cells += grid(preset, tasks=["gt"], methods=_methods(preset), directions=("ns", "dn"))
    return cells


def _run(lab: Lab) -> Outcome:
    methods = _methods(lab.preset)
    pairs = lab.held_out(_TASK)
    asked = {"pairs": pairs.fingerprint, "criteria": vars(Criteria())}
    measured = lab.remember("roles", asked, lambda: measure_roles(lab.model, pairs).to_json())
    alike = torch.tensor(
        lab.remember(
            "attention similarity",
            {"pairs": pairs.fingerprint},
            lambda: attention_similarity(lab.model, pairs).tolist(),
        )
    )
    published = is_gpt2_small(lab.model)
    roles: Roles = PUBLISHED_IOI if published else measured["roles"]
    studies = {
        (method, size): _study(lab, method, size, roles, alike) for method in methods for size in lab.sizes(method)
    }
    middle = {method: _middle(lab.sizes(method)) for method in methods}
    drawn = _gates(lab, methods[0], middle[methods[0]], 0)
    title = f"{METHOD_NAMES[methods[0]]}, {middle[methods[0]]:,} edges in each direction, seed 0"
    outcome_tables = [_role_table(roles, measured["roles"] if published else None), *_tables(lab, studies)]
    verdicts = _verdicts(studies, methods, middle, roles)
    if published:
        recall, verdict = _recall(lab, methods, middle)
        outcome_tables.append(recall)
        verdicts.append(verdict)
    return Outcome(
        tables=outcome_tables,
        verdicts=verdicts,
        figures={
            f"Cases of gates in two layers, coloured by function (figsimplegate). {title}": cases_figure(drawn, roles),
            f"Circuits of AND, OR and ADDER gates, coloured by function (figgatecircuit); of each type the strongest "
            f"edges in gates of two or more. {title}": circuit_figure(drawn, roles),
        },
        notes=[
            _EARLIER,
            "Functions are "
            + (
                "those published for GPT-2 small (Wang et al. 2022), whatever these weights are."
                if published
                else "measured on the held-out prompts and on random tokens; docs/paper.md has the criteria."
            ),
            "Permuting functions over all heads that have one does not hold their layers fixed: heads of one function "
            "stand in neighbouring layers, and so do the senders of short edges.",
        ],
    )


def _middle(sizes: Sequence[int]) -> int:
    """Of the paper's six sizes 1,000; sizes below those do not count."""
    return sizes[-6:][len(sizes[-6:]) // 2]


def _gates(lab: Lab, method: str, size: int, seed: int) -> Gates:
    ns, dn = (lab.circuits(_TASK, method, direction, seed)[size] for direction in ("ns", "dn"))
    return split_gates(ns, dn)


def _study(lab: Lab, method: str, size: int, roles: Roles, alike: Tensor) -> dict[str, Any]:
    """What is measured on the gates of all seeds: type -> numbers."""
    every = [_gates(lab, method, size, seed) for seed in range(lab.preset.seeds[method])]
    asked = {
        "circuits": [circuit.fingerprint for gates in every for circuit in (gates.ns, gates.dn)],
        "roles": dict(roles),
        "permutations": _PERMUTATIONS,
        "pairs": lab.held_out(_TASK).fingerprint,
    }
    found: dict[str, Any] = lab.remember("graph study", asked, lambda: study_gates(every, roles, alike))
    return found


def study_gates(every: Sequence[Gates], roles: Roles, alike: Tensor, *, seed: int = 0) -> dict[str, Any]:
    """Numbers for each type of gate. alike: [head, head], heads in the order of the graph."""
    heads = [node for stage in every[0].graph.stages if stage.kind == "attention" for node in stage.nodes]
    number = {head: i for i, head in enumerate(heads)}
    known = torch.tensor([number[head] for head in heads if head in roles], dtype=torch.long)
    classes = sorted(set(roles.values()))
    role = torch.tensor([classes.index(roles[head]) if head in roles else -1 for head in heads])
    same = (role[:, None] == role[None, :]).double()
    senders = sorted({number[s] for gates in every for gate in gates for s in gate.senders if s in number})
    spans, apart = _against_permuted_types(every, seed)
    found: dict[str, Any] = {}
    for kind in GATE_TYPES:
        wide = [gate for gates in every for gate in gates if gate.type == kind and len(gate.edges) > 1]
        pairs = _head_pairs([gate.senders for gate in wide], number)
        of_known = [(i, j) for i, j in pairs if heads[i] in roles and heads[j] in roles]
        edges = [edge for gates in every for edge in gates.by_type[kind]]
        found[kind] = {
            "edges": len(edges),
            "gates": len(wide),
            "same": _against_permuted_heads(of_known, same, known, seed),
            "alike": _against_permuted_heads(pairs, alike, torch.tensor(senders, dtype=torch.long), seed),
            "crossed": spans[kind],
            "apart": apart[kind],
            "from MLPs": sum(edge.startswith("m") for edge in edges) / len(edges) if edges else None,
        }
    return found


def _head_pairs(gates: Sequence[Sequence[str]], number: dict[str, int]) -> list[tuple[int, int]]:
    return [
        pair
        for senders in gates
        for pair in combinations(sorted(number[sender] for sender in senders if sender in number), 2)
    ]


def _against_permuted_heads(
    pairs: Sequence[tuple[int, int]], matrix: Tensor, pool: Tensor, seed: int
) -> dict[str, Any]:
    """The mean of a matrix [head, head] over pairs, and what it is when the heads of the pool are exchanged."""
    if not pairs:
        return _nothing()
    first, second = torch.tensor(pairs).T
    place = torch.full((len(matrix),), -1)
    place[pool] = torch.arange(len(pool))
    first, second = place[first], place[second]
    inside = matrix[pool][:, pool]
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for _ in range(_PERMUTATIONS):
        order = torch.randperm(len(pool), generator=generator)
        drawn.append(inside[order[first], order[second]].mean())
    return _compared(float(inside[first, second].mean()), torch.stack(drawn), len(pairs))


def _against_permuted_types(
    every: Sequence[Gates], seed: int
) -> tuple[dict[GateType, dict[str, Any]], dict[GateType, dict[str, Any]]]:
    """Layers that edges cross, and layers between two senders of one gate, for each type."""
    graph = every[0].graph
    sender_layer, port_layer = torch.tensor(graph.sender_layer), torch.tensor(graph.port_layer)
    labels, crossed, layers, firsts, seconds = [], [], [], [], []
    start = 0
    for gates in every:
        by_type = [torch.tensor(gates.by_type[kind].indices, dtype=torch.long) for kind in GATE_TYPES]
        edges = torch.cat(by_type)
        labels += [torch.full((len(some),), i) for i, some in enumerate(by_type)]
        senders, ports = sender_layer[graph.edge_sender[edges]], graph.edge_port[edges]
        crossed.append(port_layer[ports] - senders)
        layers.append(senders)
        meeting = (ports[:, None] == ports[None, :]).triu(diagonal=1).nonzero()
        firsts.append(meeting[:, 0] + start)
        seconds.append(meeting[:, 1] + start)
        start += len(edges)
    label, span, layer = torch.cat(labels), torch.cat(crossed).double(), torch.cat(layers).double()
    first, second = torch.cat(firsts), torch.cat(seconds)
    apart = (layer[first] - layer[second]).abs()

    def of(labelling: Tensor) -> Tensor:  # [what, type]
        pair = torch.where(labelling[first] == labelling[second], labelling[first], -1)
        return torch.stack(
            [torch.stack([span[labelling == i].mean(), apart[pair == i].mean()]) for i in range(len(GATE_TYPES))], dim=1
        )

    generator = torch.Generator().manual_seed(seed)
    drawn = torch.stack([of(label[torch.randperm(len(label), generator=generator)]) for _ in range(_PERMUTATIONS)])
    seen = of(label)
    counts = [[int((label == i).sum()), int(((label[first] == i) & (label[second] == i)).sum())] for i in range(3)]
    results = [
        {
            kind: _compared(float(seen[what, i]), drawn[:, what, i], counts[i][what]) if counts[i][what] else _nothing()
            for i, kind in enumerate(GATE_TYPES)
        }
        for what in range(2)
    ]
    return results[0], results[1]


def _compared(value: float, drawn: Tensor, count: int) -> dict[str, Any]:
    drawn = drawn[drawn.isfinite()]
    if not len(drawn):
        return {**_nothing(), "n": count, "value": value}
    tolerance = 1e-9  # the same numbers added in another order are equal
    low, high = (drawn <= value + tolerance).sum(), (drawn >= value - tolerance).sum()
    return {
        "n": count,
        "value": value,
        "chance": float(drawn.mean()),
        "p_low": (1 + int(low)) / (1 + len(drawn)),  # as small by chance
        "p_high": (1 + int(high)) / (1 + len(drawn)),
    }


def _nothing() -> dict[str, Any]:
    return {"n": 0, "value": None, "chance": None, "p_low": None, "p_high": None}


def _role_table(roles: Roles, measured: Roles | None) -> Table:
    def listed(which: Roles, role: str) -> str:
        return ", ".join(head for head, its in which.items() if its == role) or "none"

    if measured is None:
        rows = [(role, listed(roles, role)) for role in ROLES if role != "backup name mover"]
        return Table("Functions of heads, measured", ("function", "heads"), rows)
    columns = ("function", "published", "measured with our criteria")
    both = [(role, listed(roles, role), listed(measured, role)) for role in ROLES]
    return Table("Functions of heads", columns, both, "Published ones are used. Measured: see docs/paper.md.")


def _tables(lab: Lab, studies: dict[tuple[str, int], dict[str, Any]]) -> list[Table]:
    joined: list[list[Any]] = []
    reach: list[list[Any]] = []
    for (method, size), study in studies.items():
        for kind in GATE_TYPES:
            one = study[kind]
            start = [METHOD_NAMES[method], size, kind]
            same, alike = one["same"], one["alike"]
            joined.append(
                [*start, one["gates"], same["n"], *_three(same), alike["n"], *_three(alike)],
            )
            reach.append([*start, one["edges"], *_three(one["crossed"]), *_three(one["apart"]), one["from MLPs"]])
    seeds = ", ".join(f"{METHOD_NAMES[m]} {lab.preset.seeds[m]}" for m in dict.fromkeys(m for m, _ in studies))
    about = f"Over all seeds ({seeds}). Chance: mean of {_PERMUTATIONS:,} permutations; p: one-sided, the smaller side."
    where, chance = ("method", "edges", "type"), ("by chance", "p")
    return [
        Table(
            "What gates join: pairs of heads with edges of one type into one receiver",
            (*where, *_JOINED[:3], *chance, *_JOINED[3:], *chance),
            joined,
            about,
        ),
        Table(
            "How far gates reach",
            (
                *where,
                "edges found",
                "layers crossed",
                *chance,
                "layers between two senders",
                *chance,
                "edges from MLPs",
            ),
            reach,
            about,
        ),
    ]


def _three(compared: dict[str, Any]) -> list[float | None]:
    sides = [side for side in (compared["p_low"], compared["p_high"]) if side is not None]
    return [compared["value"], compared["chance"], min(sides, default=None)]


def _verdicts(
    studies: dict[tuple[str, int], dict[str, Any]], methods: Sequence[str], middle: dict[str, int], roles: Roles
) -> list[Verdict]:
    main = studies[methods[0], middle[methods[0]]]
    verdicts = [
        Verdict(
            f"{kind} gates receive edges from {'different functions' if kind == 'AND' else 'the same function'}.",
            _judge_pairs(main[kind], same=kind == "OR"),
            " ".join(_pairs_in_words(studies[m, middle[m]][kind], m, middle[m]) for m in methods)
            + (f" {_EARLIER}" if kind == "AND" else ""),
        )
        for kind in ("AND", "OR")
    ]
    reaches: tuple[tuple[str, str, tuple[GateType, ...]], ...] = (
        ("OR gates operate over the shortest distances, ADDER gates over the longest.", "crossed", ("OR", "ADDER")),
        ("ADDER gates combine shallow with deep layers.", "apart", ("ADDER",)),
    )
    for claim, what, extremes in reaches:
        because = " ".join(_reach_in_words(studies[m, middle[m]], what, m, middle[m]) for m in methods)
        verdicts.append(Verdict(claim, _judge_reach(main, what, extremes), because))
    return verdicts


def _judge_pairs(one: dict[str, Any], *, same: bool) -> Judgement:
    """By the functions of heads where there are enough pairs of known function, else by how alike they attend."""
    compared = one["same"] if _tells(one["same"]) else one["alike"]
    if compared["n"] < _FEWEST_PAIRS or compared["chance"] is None:
        return "cannot be judged"
    beyond = compared["value"] > compared["chance"] if same else compared["value"] < compared["chance"]
    p = compared["p_high" if same else "p_low"]
    mostly = compared is one["alike"] or (compared["value"] >= 0.5) == same
    if beyond and p < 0.05:
        return "holds" if mostly else "holds partly"
    return "holds partly" if beyond and mostly else "does not hold"


def _tells(same: dict[str, Any]) -> bool:
    """Whether functions can tell anything: enough pairs, and heads of more than one function."""
    return bool(same["n"] >= _FEWEST_PAIRS and 0 < same["chance"] < 1)


def _pairs_in_words(one: dict[str, Any], method: str, size: int) -> str:
    same, alike = one["same"], one["alike"]
    text = f"{METHOD_NAMES[method]}, {size:,} edges: "
    if _tells(same):
        text += (
            f"{same['value']:.0%} of {same['n']} pairs have the same function, {same['chance']:.0%} by chance "
            f"(p {min(same['p_low'], same['p_high']):.2g})"
        )
    else:
        text += f"{same['n']} pairs of heads of known function, too few (or of one function only) to judge by"
    if alike["n"] >= _FEWEST_PAIRS and alike["chance"] is not None:
        text += (
            f"; attention of {alike['n']} pairs correlates by {alike['value']:.2f}, {alike['chance']:.2f} by chance "
            f"(p {min(alike['p_low'], alike['p_high']):.2g})"
        )
    return text + "."


def _judge_reach(study: dict[str, Any], what: str, extremes: Sequence[GateType]) -> Judgement:
    """Whether OR is the smallest and ADDER the largest, more than chance makes them."""
    if any(study[kind][what]["chance"] is None for kind in GATE_TYPES):
        return "cannot be judged"
    values = {kind: study[kind][what]["value"] for kind in GATE_TYPES}
    ends: dict[GateType, tuple[Callable[..., float], str]] = {"OR": (min, "p_low"), "ADDER": (max, "p_high")}
    met = [
        values[kind] == ends[kind][0](values.values()) and study[kind][what][ends[kind][1]] < 0.05 for kind in extremes
    ]
    return "holds" if all(met) else "holds partly" if any(met) else "does not hold"


def _reach_in_words(study: dict[str, Any], what: str, method: str, size: int) -> str:
    name = {"crossed": "layers that an edge crosses", "apart": "layers between two senders of a gate"}[what]
    parts = []
    for kind in GATE_TYPES:
        one = study[kind][what]
        if one["chance"] is None:
            parts.append(f"{kind} none")
        else:
            parts.append(
                f"{kind} {one['value']:.2f} (chance {one['chance']:.2f}, p {min(one['p_low'], one['p_high']):.2g})"
            )
    return f"{METHOD_NAMES[method]}, {size:,} edges: {name}: {', '.join(parts)}."


def _recall(lab: Lab, methods: Sequence[str], middle: dict[str, int]) -> tuple[Table, Verdict]:
    """How much of the published circuits the circuits of seed 0 hold."""
    published = {_TASK: tuple(PUBLISHED_IOI), **({"gt": tuple(PUBLISHED_GT)} if "gt" in lab.preset.tasks else {})}
    rows: list[list[Any]] = []
    at: dict[str, tuple[float, float]] = {}
    for task, nodes in published.items():
        for method in methods:
            found = {d: lab.circuits(task, method, d) for d in ("ns", "dn")}
            for size in lab.sizes(method):
                ns, dn = found["ns"][size], found["dn"][size]
                union = ns | dn
                random = [lab.model.graph.random_circuit(len(union), seed=i) for i in range(_RANDOM_CIRCUITS)]
                chance = sum(_share_of(nodes, circuit) for circuit in random) / _RANDOM_CIRCUITS
                shares = [_share_of(nodes, circuit) for circuit in (ns, dn, union)]
                rows.append([TASK_NAMES[task], METHOD_NAMES[method], size, *shares, chance])
                if method == methods[0] and size == middle[method]:
                    at[task] = shares[2], chance
    table = Table(
        "Share of the published circuits' nodes that the circuits hold",
        ("task", "method", "edges", "Ns", "Dn", "Ns or Dn", "random circuits as large"),
        rows,
        "Seed 0. Published: 26 heads for IOI (Wang et al. 2022), 8 heads and 4 MLPs for GT (Hanna et al. 2023).",
    )
    words = "; ".join(f"{TASK_NAMES[task]} {mine:.0%}, by chance {chance:.0%}" for task, (mine, chance) in at.items())
    above = [mine > chance for mine, chance in at.values()]
    mine_all = all(mine >= 0.8 and mine > chance for mine, chance in at.values())
    verdict = Verdict(
        "The components of the gate circuits are those of the published circuits.",
        "holds" if mine_all else "holds partly" if any(above) else "does not hold",
        f"Share of the published nodes in {METHOD_NAMES[methods[0]]}'s Ns or Dn circuit of the middle size: {words}.",
    )
    return table, verdict


def _share_of(nodes: Sequence[str], circuit: Circuit) -> float:
    return len(set(nodes) & set(circuit.nodes)) / len(nodes)


EXPERIMENT = Experiment(
    name="graph-study",
    title="Graph study",
    claim="AND gates join different functions, OR gates the same one; ADDER gates join shallow and deep layers.",
    labels=("figsimplegate", "figgatecircuit"),
    run=_run,
    cells=_cells,
)
