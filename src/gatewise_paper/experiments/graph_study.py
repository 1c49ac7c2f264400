"""Graph study: which functions AND, OR and ADDER gates join, and how far they reach (figsimplegate, figgatecircuit).

Gates are set differences of the Ns and Dn circuits on IOI; a pair is two heads that send edges of one type to one
receiver. What is measured on pairs (do the two have the same function? how alike do they attend?) is held against
chance: the same with the functions permuted among the heads that have one. What is measured on edges (how many layers
do they cross?) is held against the same with the types permuted among the edges. A seed's value is what it has beyond
chance. EAP is also run with all names replaced, so that heads which act before the second name can show.

Beside these stand gates by test: pairs of heads in the two groups of a tested gate; and the paper's own examples as
stated claims, "an induction head needs a previous token head and a duplicate token head": the heads of each function
are a group of edges into a head of the function that is said to receive them, and the exact table of the groups says
how they act together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gatewise.circuits.graph import Graph
from gatewise.circuits.literature import PUBLISHED_IOI, Roles
from gatewise.engine.setting import Setting
from gatewise.gate_types import GATE_TYPES, GateType
from gatewise.gates.labels import Gates
from gatewise.gates.testing.gate_test import run_gate_tests
from gatewise_paper.claims import Between, Claim, Ruling, least, rules
from gatewise_paper.experiment import Experiment, Measurement, Outcome, Search, TaskKey
from gatewise_paper.experiments.gate_drawings import cases_figure, circuit_figure
from gatewise_paper.head_roles import ROLES, attention_similarity, heads_of, is_gpt2_small, measure_roles
from gatewise_paper.lab import Lab
from gatewise_paper.measured import Measured, Seeds, group, of_kind
from gatewise_paper.naming import METHOD_NAMES, mean_and_deviation, mean_known, seeds_note, task_name
from gatewise_paper.presets import Preset
from gatewise_paper.sizes import CURVES
from gatewise_paper.tables import Cell, Table
from gatewise_paper.tested_gates import TESTED, TwoGroups, by_type, read_tested, tested_measurements

_TASK = "ioi"
_ALL_NAMES = "ioi:corruption=all-names"
_ACTS = 1 / 3  # the gate index from which a group acts as AND: it takes away more than twice what it brings alone
_PERMUTATIONS = 200  # for each seed
_FEWEST_PAIRS = 10  # with fewer, a seed says nothing
_EARLIER = (
    "By default clean and corrupted prompts differ in the second name only, so that everything before it is equal in "
    "both runs: functions that act earlier (previous token heads at the first mention of a name) show only where all "
    "names are replaced."
)
Study = Mapping[GateType, Mapping[str, Any]]  # by type of gate, see `study_gates`


class Example(NamedTuple):
    """What the paper says of its figures."""

    receiver: str  # its function
    gate: GateType
    functions: tuple[str, ...]  # of the groups

    def __str__(self) -> str:
        groups = ", ".join(self.functions) if len(self.functions) > 1 else f"{self.functions[0]} heads"
        return f"{self.receiver} = {self.gate}({groups})"


STATED = (
    Example("induction", "AND", ("previous token", "duplicate token")),
    Example("name mover", "AND", ("S-inhibition", "induction")),
    Example("S-inhibition", "OR", ("induction",)),
    Example("backup name mover", "OR", ("S-inhibition",)),
)
StatedTests = Sequence[Sequence[Sequence[Any]]]  # of one seed, see `stated`


# What is measured


class StudyKey(NamedTuple):
    task: str
    method: str
    size: int
    seed: int
    permutations: int


class StatedKey(NamedTuple):
    task: str
    seed: int
    pairs: int
    start: int  # of the pairs, see Preset.search_pairs


def heads(lab: Lab, key: TaskKey) -> dict[str, Any]:
    """The functions of all heads that have one, and how alike any two heads attend."""
    pairs = lab.held_out(key.task)
    return {"roles": dict(measure_roles(lab.model, pairs)), "alike": attention_similarity(lab.model, pairs).tolist()}


def study(lab: Lab, key: StudyKey) -> Study:
    """What is measured on the gates of one seed."""
    measured = lab.measure(_HEADS)
    gates = lab.gates(key.task, key.method, key.size, key.seed)
    return study_gates(gates, _roles(lab, measured["roles"]), torch.tensor(measured["alike"]), key.permutations)


def stated(lab: Lab, key: StatedKey) -> list[list[list[Any]]]:
    """For each of the paper's examples: receivers, gate indices of the groups, the label of the table."""
    roles = _roles(lab, lab.measure(_HEADS)["roles"])
    claimed = []  # example, head, groups
    for number, example in enumerate(STATED):
        for head in [head for head, role in roles.items() if role == example.receiver]:
            groups = role_groups(lab.model.graph, head, example.functions, roles)
            claimed += [(number, head, groups)] if groups else []
    setting = Setting.of(lab.model, lab.gate_pairs(key.task, key.seed))
    tested = run_gate_tests(setting, [(head, groups) for _, head, groups in claimed], rest="clean", confirm=False)
    by_example: list[list[list[Any]]] = [[] for _ in STATED]
    for (number, head, _), test in zip(claimed, tested, strict=True):
        indices = [None if math.isnan(index) else index for index in test.gamma.values()]
        by_example[number].append([head, indices, test.label, test.strongest_interaction[1].value])
    return by_example


def role_groups(graph: Graph, head: str, functions: Sequence[str], roles: Roles) -> dict[str, list[str]]:
    """Edges into all ports of a head from the heads of each function, or from every other head of the only one.

    Empty if a group would be.
    """
    ports = graph.ports_of_sender[graph.senders.index(head)]
    first_unread = graph.sublayers[graph.sublayer_of_port[ports[0]]].reads
    before = [sender for sender in graph.senders[:first_unread] if sender in roles]
    members = {function: [sender for sender in before if roles[sender] == function] for function in functions}
    if len(functions) == 1:
        (alike,) = members.values()
        members = {"one half": alike[::2], "the other": alike[1::2]}
    if not all(members.values()):
        return {}
    return {
        name: [f"{sender}->{graph.ports[port]}" for sender in senders for port in ports]
        for name, senders in members.items()
    }


_HEADS = Measurement(heads, TaskKey(_TASK))


def _roles(lab: Lab, measured: Roles) -> Roles:
    """Those published, where they can be the model's."""
    return PUBLISHED_IOI if is_gpt2_small(lab.model) else measured


def _methods(preset: Preset) -> list[str]:
    """The paper's first: ACDC. EAP beside it."""
    return [method for method in ("acdc", "eap") if method in preset.methods] or list(preset.methods[:1])


def _measurements(lab: Lab) -> Iterator[Measurement]:
    yield _HEADS
    yield from tested_measurements(lab, [_TASK])
    testing = lab.preset.testing
    for seed in range(testing.seeds):
        yield Measurement(stated, StatedKey(_ALL_NAMES, seed, testing.pairs, lab.preset.search_pairs))
    for method in _methods(lab.preset):
        tasks = [_TASK, _ALL_NAMES] if method in CURVES else [_TASK]
        for task, _, seed in lab.grid(tasks=tasks, methods=[method]):
            key = StudyKey(task, method, lab.sizes.of_gates(task), seed, _PERMUTATIONS)
            yield Measurement(study, key, (Search(task, method, seed, ("ns", "dn")),))


# What gates join, against chance


class _Heads:
    """Heads by number: which of them have the same function, and how alike they attend."""

    def __init__(self, graph: Graph, roles: Roles, alike: Tensor) -> None:
        """alike: [head, head], heads in the order of the graph."""
        names = heads_of(graph)
        classes = sorted(set(roles.values()))
        role = torch.tensor([classes.index(roles[head]) if head in roles else -1 for head in names])
        self._same = (role[:, None] == role[None, :]).double()
        self._alike = alike
        self._number = {head: i for i, head in enumerate(names)}
        self._with_role = [i for i, head in enumerate(names) if head in roles]

    def numbers(self, nodes: Iterable[str]) -> list[int]:
        """Of those nodes that are heads."""
        return sorted({self._number[node] for node in nodes if node in self._number})

    def compare(self, pairs: Sequence[tuple[int, int]], exchanged: Sequence[int], permutations: int) -> dict[str, Any]:
        """How many pairs have the same function, and how alike they attend; against exchanged heads."""
        known = set(self._with_role)
        of_known = [(i, j) for i, j in pairs if i in known and j in known]
        return {
            "same": _against_permuted_heads(of_known, self._same, self._with_role, permutations),
            "alike": _against_permuted_heads(pairs, self._alike, exchanged, permutations),
        }


def study_gates(gates: Gates, roles: Roles, alike: Tensor, permutations: int = _PERMUTATIONS) -> Study:
    """Numbers for each type of gate. alike: [head, head], heads in the order of the graph."""
    heads = _Heads(gates.graph, roles, alike)
    senders = heads.numbers(sender for gate in gates for sender in gate.senders)
    crossed, apart = _against_permuted_types(gates, permutations)
    by_type = {}
    for kind in GATE_TYPES:
        wide = [gate for gate in gates if gate.type == kind and len(gate.edges) > 1]
        pairs = [pair for gate in wide for pair in combinations(heads.numbers(gate.senders), 2)]
        by_type[kind] = {
            "edges": len(gates.by_type[kind]),
            "gates": len(wide),
            **heads.compare(pairs, senders, permutations),
            "crossed": crossed[kind],
            "apart": apart[kind],
        }
    return by_type


def study_tested(
    graph: Graph, gates: Sequence[TwoGroups], roles: Roles, alike: Tensor, permutations: int = _PERMUTATIONS
) -> Study:
    """The same for pairs of heads of the two groups of a tested gate, which are not whole ports."""
    heads, study = _Heads(graph, roles, alike), {}
    for kind, of_type in by_type(gates).items():
        pairs: list[tuple[int, int]] = []
        for gate in (gate for gate in of_type if not gate.ports):
            senders = [heads.numbers(edge.partition("->")[0] for edge in edges) for edges in gate.groups]
            pairs += [(i, j) for i, j in product(*senders) if i != j]
        study[kind] = heads.compare(pairs, sorted({head for pair in pairs for head in pair}), permutations)
    return study


def _against_permuted_heads(
    pairs: Sequence[tuple[int, int]], matrix: Tensor, exchanged: Sequence[int], permutations: int
) -> dict[str, Any]:
    """The mean of a matrix [head, head] over pairs, and what it is when these heads change places."""
    if not pairs:
        return _compared(math.nan, torch.tensor([math.nan]), 0)
    pool = torch.tensor(exchanged, dtype=torch.long)
    rank = torch.full((len(matrix),), -1)  # of a head in the pool
    rank[pool] = torch.arange(len(pool))
    first, second = rank[torch.tensor(pairs).T]
    inside = matrix[pool][:, pool]
    drawn = [inside[order[first], order[second]].mean() for order in _orders(len(pool), permutations)]
    return _compared(float(inside[first, second].mean()), torch.stack(drawn), len(pairs))


def _against_permuted_types(
    gates: Gates, permutations: int
) -> tuple[dict[GateType, dict[str, Any]], dict[GateType, dict[str, Any]]]:
    """Layers that edges cross, and layers between two senders of one gate, for each type."""
    graph = gates.graph
    of_types = [torch.tensor(gates.by_type[kind].indices, dtype=torch.long) for kind in GATE_TYPES]
    edges = torch.cat(of_types)
    labels = torch.cat([torch.full((len(indices),), i) for i, indices in enumerate(of_types)])
    layer = torch.tensor(graph.sender_layer)[graph.edge_sender[edges]].double()
    ports = graph.edge_port[edges]
    span = torch.tensor(graph.port_layer)[ports] - layer
    # Of all pairs of edges into one port; their label is that of both, or none.
    first, second = (ports[:, None] == ports[None, :]).triu(diagonal=1).nonzero().T
    apart = (layer[first] - layer[second]).abs()

    def labels_of_pairs(labels: Tensor) -> Tensor:
        return torch.where(labels[first] == labels[second], labels[first], -1)

    def means(labels: Tensor) -> Tensor:
        """[span or apart, type]"""
        pairs = labels_of_pairs(labels)
        by_type = [torch.stack([span[labels == i].mean(), apart[pairs == i].mean()]) for i in range(len(GATE_TYPES))]
        return torch.stack(by_type, dim=1)

    seen = means(labels)
    drawn = torch.stack([means(labels[order]) for order in _orders(len(labels), permutations)])
    crossed, between = {}, {}
    for i, kind in enumerate(GATE_TYPES):
        crossed[kind] = _compared(float(seen[0, i]), drawn[:, 0, i], int((labels == i).sum()))
        between[kind] = _compared(float(seen[1, i]), drawn[:, 1, i], int((labels_of_pairs(labels) == i).sum()))
    return crossed, between


def _orders(size: int, permutations: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (torch.randperm(size, generator=generator) for _ in range(permutations))


def _compared(value: float, drawn: Tensor, count: int) -> dict[str, Any]:
    """NaN where there is nothing."""
    drawn = drawn[drawn.isfinite()]
    return {"n": count, "value": value, "chance": float(drawn.mean()) if len(drawn) else math.nan}


# What becomes of it


def _judge(lab: Lab, measured: Measured) -> Outcome:
    heads_measured, published = measured[_HEADS.key], is_gpt2_small(lab.model)
    roles, alike = _roles(lab, heads_measured["roles"]), torch.tensor(heads_measured["alike"])
    studies: Seeds[Study] = group(of_kind(measured, StudyKey), "task", "method")
    tested = [study_tested(lab.model.graph, gates, roles, alike) for gates in read_tested(measured)[_TASK]]
    examples = list(of_kind(measured, StatedKey).values())
    first, size = _methods(lab.preset)[0], lab.sizes.of_gates(_TASK)
    drawn = lab.gates(_TASK, first, size)
    title = f"{METHOD_NAMES[first]}, {size:,} edges in each direction, seed 0"
    source = (
        "those published for GPT-2 small (Wang et al. 2022), whatever these weights are."
        if published
        else "measured on the held-out prompts and on random tokens; docs/paper.md has the criteria."
    )
    return Outcome(
        tables=[_role_table(roles, published), _stated_table(lab, examples), *_study_tables(lab, studies)],
        rulings=[
            *(r for (task, method), seeds in studies.items() for r in _study_rulings(lab, seeds, method, task)),
            *rules(TESTED, *_joined_claims(tested, task_name(_TASK))),
            *_stated_rulings(examples),
        ],
        figures={
            f"Cases of gates in two layers, coloured by function (figsimplegate). {title}": cases_figure(drawn, roles),
            f"Circuits of AND, OR and ADDER gates, coloured by function (figgatecircuit); of each type the strongest "
            f"edges in gates of two or more. {title}": circuit_figure(drawn, roles),
        },
        notes=[
            _EARLIER,
            f"Functions are {source}",
            "Permuting functions over all heads that have one does not hold their layers fixed: heads of one function "
            "stand in neighbouring layers, and so do the senders of short edges.",
            f"Circuits have {size:,} edges; a seed with fewer than {_FEWEST_PAIRS} pairs has no value.",
        ],
    )


def _role_table(roles: Roles, published: bool) -> Table:
    rows = [(role, ", ".join(head for head in roles if roles[head] == role) or "none") for role in ROLES]
    return Table(f"Functions of heads, {'published' if published else 'measured'}", ("function", "heads"), rows)


def _stated_table(lab: Lab, examples: Sequence[StatedTests]) -> Table:
    rows: list[list[Cell]] = []
    for number, example in enumerate(STATED):
        receivers: dict[str, list[Any]] = {}  # gate indices, label and interaction of each seed
        for seed in examples:
            for head, *test in seed[number]:
                receivers.setdefault(head, []).append(test)
        for head, tests in receivers.items():
            indices, labels, interaction = zip(*tests, strict=True)
            by_group = [[index for index in of_group if index is not None] for of_group in zip(*indices, strict=True)]
            counted = ", ".join(f"{label} {count}" for label, count in Counter(labels).most_common())
            means = [*map(mean_and_deviation, by_group), mean_and_deviation(interaction)]
            rows.append([str(example), head, *means, counted])
        if not receivers:
            rows.append([str(example), "no heads of these functions", None, None, None, None])
    groups = ("gate index of the first group", "of the second")
    columns = ("the paper", "receiver", *groups, "interaction", "labels by seed")
    note = (
        f"Mean ± standard deviation over {len(examples)} seeds of {lab.preset.testing.pairs} pairs each, all names "
        "replaced, all else clean. 1 is AND, -1 OR, 0 ADDER; a group that does less than 1 % of the logit difference "
        "has no index."
    )
    return Table("The paper's examples, tested", columns, rows, note)


def stated_value(receivers: Sequence[Sequence[Any]], kind: GateType) -> float:
    """Mean gate index over receivers and groups, with the sign that the claim has; NaN if no group does anything."""
    known = [index for _, indices, _, _ in receivers for index in indices if index is not None]
    return (1 if kind == "AND" else -1) * mean_known(known)


def _stated_rulings(examples: Sequence[StatedTests]) -> list[Ruling]:
    claims = []
    for number, example in enumerate(STATED):
        text = str(example)
        what = f"{'mean' if example.gate == 'AND' else 'minus the mean'} gate index of the groups"
        values = {task_name(_ALL_NAMES): [stated_value(seed[number], example.gate) for seed in examples]}
        paper = "an example in a figure"
        claims.append(Claim(f"{text[0].upper()}{text[1:]}.", what, values, Between(_ACTS, 1.0), paper))
    return rules("roles, tested", *claims)


def _study_tables(lab: Lab, studies: Seeds[Study]) -> list[Table]:
    joined: list[list[Cell]] = []
    reach: list[list[Cell]] = []
    for ((task, method), seeds), kind in product(studies.items(), GATE_TYPES):
        of_kind = [seed[kind] for seed in seeds]
        counts = {name: mean_known(seed[name] for seed in of_kind) for name in ("gates", "edges")}
        compared = {}
        for what in ("same", "alike", "crossed", "apart"):
            compared[what] = [mean_known(seed[what][part] for seed in of_kind) for part in ("n", "value", "chance")]
        start: list[Cell] = [METHOD_NAMES[method], task_name(task), lab.sizes.of_gates(task), kind]
        joined.append([*start, counts["gates"], *compared["same"], *compared["alike"]])
        reach.append([*start, counts["edges"], *compared["crossed"][1:], *compared["apart"][1:]])
    note = (
        f"Means over seeds ({seeds_note(lab.preset.seeds_for(methods=_methods(lab.preset)))}). Chance: mean of "
        f"{_PERMUTATIONS:,} permutations."
    )
    where = ("method", "task", "edges", "type")
    pairs = ("pairs of known function", "same function", "by chance")
    alike = ("pairs of heads", "similarity of attention", "by chance")
    far = ("layers crossed", "by chance", "layers between two senders", "by chance")
    title = "What gates join: pairs of heads with edges of one type into one receiver"
    return [
        Table(title, (*where, "gates", *pairs, *alike), joined, note),
        Table("How far gates reach", (*where, "edges found", *far), reach, note),
    ]


def beyond_chance(of_type: Mapping[str, Any], what: str) -> float:
    """NaN for too few pairs, or if chance cannot vary: heads of one function only."""
    compared = of_type[what]
    tells = compared["n"] >= _FEWEST_PAIRS and (what != "same" or 0 < compared["chance"] < 1)
    return float(compared["value"] - compared["chance"]) if tells else math.nan


def _joined_claims(seeds: Sequence[Study], task: str) -> list[Claim]:
    """What the senders of gates have to do with each other."""
    claims: list[Claim] = []
    signs: dict[GateType, int] = {"AND": -1, "OR": 1}
    for kind, sign in signs.items():
        functions = "different functions" if sign < 0 else "the same function"
        for what, by, measure in (
            ("same", "the functions of heads", "share of pairs of heads with the same function"),
            ("alike", "how heads attend", "correlation of the attention of pairs of heads"),
        ):
            compared = f"chance less {measure}" if sign < 0 else f"{measure} less chance"
            values = [sign * beyond_chance(seed[kind], what) for seed in seeds]
            text = f"{kind} gates receive edges from {functions}, by {by}."
            claims.append(Claim(text, compared, {task: values}, paper="drawings"))
    return claims


def _study_rulings(lab: Lab, seeds: Sequence[Study], method: str, task: str) -> list[Ruling]:
    layers, at = lab.model.graph.n_layers, task_name(task)
    crossed = [{kind: float(seed[kind]["crossed"]["value"]) / layers for kind in GATE_TYPES} for seed in seeds]
    share = "as a share of all layers"
    return rules(
        METHOD_NAMES[method] if task == _TASK else f"{METHOD_NAMES[method]}, all names replaced",
        *_joined_claims(seeds, at),
        Claim(
            "OR gates operate over the shortest distances.",
            f"layers that an edge crosses, the smaller of AND and ADDER less OR, {share}",
            {at: [least(*(seed[kind] - seed["OR"] for kind in ("AND", "ADDER"))) for seed in crossed]},
            paper="drawings",
        ),
        Claim(
            "ADDER gates operate over the longest distances.",
            f"layers that an edge crosses, ADDER less the larger of AND and OR, {share}",
            {at: [least(*(seed["ADDER"] - seed[kind] for kind in ("AND", "OR"))) for seed in crossed]},
            paper="drawings",
        ),
        Claim(
            "ADDER gates combine shallow with deep layers.",
            f"layers between two senders of an ADDER gate less chance, {share}",
            {at: [beyond_chance(seed["ADDER"], "apart") / layers for seed in seeds]},
            paper="drawings",
        ),
        primary=task == _TASK,
    )


EXPERIMENT = Experiment(
    name="graph-study",
    title="Graph study",
    claim="AND gates join different functions, OR gates the same one; ADDER gates join shallow and deep layers.",
    labels=("figsimplegate", "figgatecircuit"),
    measurements=_measurements,
    judge=_judge,
)
