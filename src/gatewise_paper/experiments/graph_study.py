"""Graph study: which functions AND, OR and ADDER gates join, and how far they reach (figsimplegate, figgatecircuit).

Gates are the plain split of the Ns and Dn circuits on IOI; a pair is two heads that send edges of one type to one
receiver. What is measured on pairs (do the two have the same function? how alike do they attend?) is held against
chance: the same with the functions permuted among the heads that have one. What is measured on edges (how many layers
do they cross?) is held against the same with the types permuted among the edges. A seed's value is what it has beyond
chance. EAP is also run with all names replaced, so that heads which act before the second name can show.

Beside the split stand gates by test: pairs of heads in the two groups of a tested gate; and the paper's own examples
as stated claims, "an induction head needs a previous token head and a duplicate token head": the heads of each function
are a group of edges into a head of the function that is said to receive them, and the exact table of the groups says
how they act together.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.circuits.literature import PUBLISHED_GT, PUBLISHED_IOI, Roles
from gatewise.engine.setting import Setting
from gatewise.gate_types import GATE_TYPES, GateType
from gatewise.gates.labels import Gates
from gatewise.gates.testing.gate_test import run_gate_tests
from gatewise_paper.claims import Above, Between, Claim, Ruling, least, rule, rules
from gatewise_paper.experiment import Experiment, Measured, Measurement, Result, Table, TaskKey, group, of_kind
from gatewise_paper.experiments.gate_drawings import cases_figure, circuit_figure
from gatewise_paper.head_roles import ROLES, attention_similarity, is_gpt2_small, measure_roles
from gatewise_paper.lab import Lab
from gatewise_paper.naming import METHOD_NAMES, mean_and_deviation, seeds_note, task_name
from gatewise_paper.presets import Preset
from gatewise_paper.tested_gates import TESTED, TwoGroups, by_type, tested_gates, tested_to_measure

_TASK = "ioi"
_ALL_NAMES = "ioi:corruption=all-names"
_ACTS = 1 / 3  # the gate index from which a group acts as AND: it takes away more than twice what it brings alone
# What the paper says of its figures: the receiver's function, the gate, the functions of the groups
STATED: tuple[tuple[str, GateType, tuple[str, ...]], ...] = (
    ("induction", "AND", ("previous token", "duplicate token")),
    ("name mover", "AND", ("S-inhibition", "induction")),
    ("S-inhibition", "OR", ("induction",)),
    ("backup name mover", "OR", ("S-inhibition",)),
)
_PERMUTATIONS = 200  # for each seed
_FEWEST_PAIRS = 10  # with fewer, a seed says nothing
_RANDOM_CIRCUITS = 20
_PUBLISHED = {_TASK: tuple(PUBLISHED_IOI), "gt": tuple(PUBLISHED_GT)}
_EARLIER = (
    "By default clean and corrupted prompts differ in the second name only, so that everything before it is equal in "
    "both runs: functions that act earlier (previous token heads at the first mention of a name) show only where all "
    "names are replaced."
)


class StudyKey(NamedTuple):
    task: str
    method: str
    size: int
    seed: int
    permutations: int


class RecallKey(NamedTuple):
    task: str
    method: str
    size: int
    seed: int
    random_circuits: int


def heads(lab: Lab, key: TaskKey) -> dict[str, Any]:
    """The functions of all heads that have one, and how alike any two heads attend."""
    pairs = lab.held_out(key.task)
    return {
        "roles": dict(measure_roles(lab.model, pairs)),
        "alike": attention_similarity(lab.model, pairs).tolist(),
    }


def study(lab: Lab, key: StudyKey) -> dict[str, Any]:
    """What is measured on the gates of one seed: type -> numbers."""
    known = lab.measure(_heads_to_measure())
    roles = _roles(lab, known["roles"])
    gates = lab.gates(key.task, key.method, key.size, key.seed)
    return study_gates(gates, roles, torch.tensor(known["alike"]), permutations=key.permutations)


class StatedKey(NamedTuple):
    task: str
    seed: int
    pairs: int
    start: int  # of the pairs, see Preset.pool


def stated(lab: Lab, key: StatedKey) -> list[list[list[Any]]]:
    """For each of the paper's examples: receivers, gate indices of the groups, the label of the table."""
    roles = _roles(lab, lab.measure(_heads_to_measure())["roles"])
    setting = Setting.of(lab.model, lab.gate_pairs(key.task, key.seed))
    asked = [
        (place, head, groups)
        for place, (receiver, _, functions) in enumerate(STATED)
        for head in [head for head, role in roles.items() if role == receiver]
        if (groups := role_groups(lab.model.graph, head, functions, roles))
    ]
    tested = run_gate_tests(setting, [(head, groups) for _, head, groups in asked], rest="clean", confirm=False)
    found: list[list[list[Any]]] = [[] for _ in STATED]
    for (place, head, _), one in zip(asked, tested, strict=True):
        indices = [None if math.isnan(index) else index for index in one.gamma.values()]
        found[place].append([head, indices, one.label, one.strongest_interaction[1].value])
    return found


def role_groups(graph: Graph, head: str, functions: Sequence[str], roles: Roles) -> dict[str, list[str]]:
    """Edges into all ports of a head from the heads of each function, or from every other head of the only one.

    Empty if a group would be.
    """
    places = graph.ports_of_sender[graph.senders.index(head)]
    ports = [graph.ports[port] for port in places]
    before = [one for one in graph.senders[: graph.sublayers[graph.sublayer_of_port[places[0]]].reads] if one in roles]
    if len(functions) == 1:
        heads = [one for one in before if roles[one] == functions[0]]
        members = {"one half": heads[::2], "the other": heads[1::2]}
    else:
        members = {function: [one for one in before if roles[one] == function] for function in functions}
    return (
        {n: [f"{h}->{p}" for h in some for p in ports] for n, some in members.items()} if all(members.values()) else {}
    )


def recall(lab: Lab, key: RecallKey) -> list[float]:
    """Share of the published circuit's nodes that Ns, Dn, either, and random circuits as large as both hold."""
    nodes = _PUBLISHED[key.task]
    ns, dn = (lab.circuits(key.task, key.method, direction, key.seed)[key.size] for direction in ("ns", "dn"))
    random = [lab.model.graph.random_circuit(len(ns | dn), seed=i) for i in range(key.random_circuits)]
    chance = statistics.fmean(_share_of(nodes, circuit) for circuit in random)
    return [*(_share_of(nodes, circuit) for circuit in (ns, dn, ns | dn)), chance]


def _share_of(nodes: Sequence[str], circuit: Circuit) -> float:
    return len(set(nodes) & set(circuit.nodes)) / len(nodes)


def _methods(preset: Preset) -> list[str]:
    """The paper's first: ACDC. EAP beside it."""
    return [m for m in ("acdc", "eap") if m in preset.methods] or list(preset.methods[:1])


def _heads_to_measure() -> Measurement:
    return Measurement(heads, TaskKey(_TASK))


def _roles(lab: Lab, measured: Roles) -> Roles:
    """Those published, where they can be the model's."""
    return PUBLISHED_IOI if is_gpt2_small(lab.model) else measured


def _measurements(lab: Lab) -> Iterator[Measurement]:
    yield _heads_to_measure()
    yield from tested_to_measure(lab, [_TASK])
    for seed in range(max(lab.preset.seeds_for("tested-gates").values())):
        yield Measurement(stated, StatedKey(_ALL_NAMES, seed, lab.preset.gate_pairs, lab.preset.pool))
    known = [task for task in _PUBLISHED if task in lab.preset.tasks] if is_gpt2_small(lab.model) else []
    for method in _methods(lab.preset):
        some: dict[str, Any] = {"methods": [method], "size": lab.gate_size}
        tasks = [_TASK, _ALL_NAMES] if method in lab.preset.curves else [_TASK]
        yield from lab.cells(study, StudyKey, ("ns", "dn"), tasks=tasks, permutations=_PERMUTATIONS, **some)
        yield from lab.cells(recall, RecallKey, ("ns", "dn"), tasks=known, random_circuits=_RANDOM_CIRCUITS, **some)


def _judge(lab: Lab, measured: Measured) -> Result:
    ((_, known),) = of_kind(measured, TaskKey).items()
    roles, published = _roles(lab, known["roles"]), is_gpt2_small(lab.model)
    studies = group(of_kind(measured, StudyKey), "method", "task")
    recalls = group(of_kind(measured, RecallKey), "task", "method", "size")
    tested = [
        study_tested(lab.model.graph, gates, roles, torch.tensor(known["alike"]))
        for gates in tested_gates(measured)[_TASK]
    ]
    examples = list(of_kind(measured, StatedKey).values())
    first, *_ = _methods(lab.preset)
    size = lab.gate_size(_TASK)
    drawn = lab.gates(_TASK, first, size)
    title = f"{METHOD_NAMES[first]}, {size:,} edges in each direction, seed 0"
    return Result(
        tables=[
            _role_table(roles, known["roles"] if published else None),
            _stated_table(lab, examples),
            *_tables(lab, studies),
            *([_recall_table(recalls)] if recalls else []),
        ],
        rulings=[
            *(r for (method, task), some in studies.items() for r in _rulings(lab, some, method, task)),
            *_tested_rulings(lab, tested),
            *_stated_rulings(examples),
            *(_recall_ruling(lab, recalls, method) for method in _methods(lab.preset) if recalls),
        ],
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
            f"Circuits have {size:,} edges; a seed with fewer than {_FEWEST_PAIRS} pairs has no value.",
        ],
    )


def study_tested(
    graph: Graph, gates: Sequence[TwoGroups], roles: Roles, alike: Tensor, *, permutations: int = _PERMUTATIONS
) -> dict[str, Any]:
    """The same numbers for pairs of heads of the two groups of a tested gate, which are not whole ports."""
    names = [node for sublayer in graph.sublayers if sublayer.kind == "attention" for node in sublayer.nodes]
    number = {head: i for i, head in enumerate(names)}
    role = torch.tensor([sorted(set(roles.values())).index(roles[h]) if h in roles else -1 for h in names])
    same = (role[:, None] == role[None, :]).double()
    known = torch.tensor([number[head] for head in names if head in roles], dtype=torch.long)
    found: dict[str, Any] = {}
    for kind, some in by_type(gates).items():
        pairs = []
        for gate in (gate for gate in some if not gate.ports):
            senders = [{edge.partition("->")[0] for edge in edges} & number.keys() for edges in gate.groups]
            pairs += [(number[a], number[b]) for a, b in product(*map(sorted, senders)) if a != b]
        of_known = [(i, j) for i, j in pairs if names[i] in roles and names[j] in roles]
        pool = torch.tensor(sorted({head for pair in pairs for head in pair}), dtype=torch.long)
        found[kind] = {
            "same": _against_permuted_heads(of_known, same, known, permutations, 0),
            "alike": _against_permuted_heads(pairs, alike, pool, permutations, 0),
        }
    return found


def study_gates(
    gates: Gates, roles: Roles, alike: Tensor, *, permutations: int = _PERMUTATIONS, seed: int = 0
) -> dict[str, Any]:
    """Numbers for each type of gate. alike: [head, head], heads in the order of the graph."""
    names = [node for sublayer in gates.graph.sublayers if sublayer.kind == "attention" for node in sublayer.nodes]
    number = {head: i for i, head in enumerate(names)}
    known = torch.tensor([number[head] for head in names if head in roles], dtype=torch.long)
    classes = sorted(set(roles.values()))
    role = torch.tensor([classes.index(roles[head]) if head in roles else -1 for head in names])
    same = (role[:, None] == role[None, :]).double()
    senders = sorted({number[s] for gate in gates for s in gate.senders if s in number})
    spans, apart = _against_permuted_types(gates, permutations, seed)
    found: dict[str, Any] = {}
    for kind in GATE_TYPES:
        wide = [gate for gate in gates if gate.type == kind and len(gate.edges) > 1]
        heads_of = (sorted(number[sender] for sender in gate.senders if sender in number) for gate in wide)
        pairs = [pair for some in heads_of for pair in combinations(some, 2)]
        of_known = [(i, j) for i, j in pairs if names[i] in roles and names[j] in roles]
        edges = list(gates.by_type[kind])
        pool = torch.tensor(senders, dtype=torch.long)
        found[kind] = {
            "edges": len(edges),
            "gates": len(wide),
            "same": _against_permuted_heads(of_known, same, known, permutations, seed),
            "alike": _against_permuted_heads(pairs, alike, pool, permutations, seed),
            "crossed": spans[kind],
            "apart": apart[kind],
            "from MLPs": sum(edge.startswith("m") for edge in edges) / len(edges) if edges else math.nan,
        }
    return found


def _against_permuted_heads(
    pairs: Sequence[tuple[int, int]], matrix: Tensor, pool: Tensor, permutations: int, seed: int
) -> dict[str, Any]:
    """The mean of a matrix [head, head] over pairs, and what it is when the heads of the pool are exchanged."""
    if not pairs:
        return _compared(math.nan, torch.tensor([math.nan]), 0)
    first, second = torch.tensor(pairs).T
    place = torch.full((len(matrix),), -1)
    place[pool] = torch.arange(len(pool))
    first, second = place[first], place[second]
    inside = matrix[pool][:, pool]
    orders = _orders(len(pool), permutations, seed)
    drawn = [inside[order[first], order[second]].mean() for order in orders]
    return _compared(float(inside[first, second].mean()), torch.stack(drawn), len(pairs))


def _against_permuted_types(
    gates: Gates, permutations: int, seed: int
) -> tuple[dict[GateType, dict[str, Any]], dict[GateType, dict[str, Any]]]:
    """Layers that edges cross, and layers between two senders of one gate, for each type."""
    graph = gates.graph
    by_type = [torch.tensor(gates.by_type[kind].indices, dtype=torch.long) for kind in GATE_TYPES]
    edges = torch.cat(by_type)
    label = torch.cat([torch.full((len(some),), i) for i, some in enumerate(by_type)])
    layer = torch.tensor(graph.sender_layer)[graph.edge_sender[edges]].double()
    ports = graph.edge_port[edges]
    span = torch.tensor(graph.port_layer)[ports] - layer
    first, second = (ports[:, None] == ports[None, :]).triu(diagonal=1).nonzero().T
    apart = (layer[first] - layer[second]).abs()

    def of(labelling: Tensor) -> Tensor:  # [what, type]
        pair = torch.where(labelling[first] == labelling[second], labelling[first], -1)
        return torch.stack(
            [torch.stack([span[labelling == i].mean(), apart[pair == i].mean()]) for i in range(len(GATE_TYPES))], dim=1
        )

    drawn, seen = torch.stack([of(label[order]) for order in _orders(len(label), permutations, seed)]), of(label)
    both = torch.where(label[first] == label[second], label[first], -1)
    crossed, between = (
        {
            kind: _compared(float(seen[what, i]), drawn[:, what, i], int((labels == i).sum()))
            for i, kind in enumerate(GATE_TYPES)
        }
        for what, labels in enumerate((label, both))
    )
    return crossed, between


def _orders(size: int, permutations: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randperm(size, generator=generator) for _ in range(permutations))


def _compared(value: float, drawn: Tensor, count: int) -> dict[str, Any]:
    """NaN where there is nothing."""
    drawn = drawn[drawn.isfinite()]
    return {"n": count, "value": value, "chance": float(drawn.mean()) if len(drawn) else math.nan}


def _role_table(roles: Roles, measured: Roles | None) -> Table:
    def listed(which: Roles, role: str) -> str:
        return ", ".join(head for head, its in which.items() if its == role) or "none"

    if measured is None:
        rows = [(role, listed(roles, role)) for role in ROLES if role != "backup name mover"]
        return Table("Functions of heads, measured", ("function", "heads"), rows)
    columns = ("function", "published", "measured with our criteria")
    both = [(role, listed(roles, role), listed(measured, role)) for role in ROLES]
    return Table("Functions of heads", columns, both, "Published ones are used. Measured: see docs/paper.md.")


def _stated_table(lab: Lab, examples: Sequence[Sequence[Sequence[Any]]]) -> Table:
    rows: list[list[Any]] = []
    for place, one in enumerate(STATED):
        receivers: dict[str, list[Any]] = {}
        for seed in examples:
            for head, indices, label, worth in seed[place]:
                receivers.setdefault(head, []).append((indices, label, worth))
        for head, some in receivers.items():
            by_group = [[row[0][i] for row in some if row[0][i] is not None] for i in range(2)]
            labels = Counter(label for _, label, _ in some)
            told = ", ".join(f"{label} {count}" for label, count in labels.most_common())
            worth = mean_and_deviation([row[2] for row in some])
            rows.append([_in_words(one), head, *map(mean_and_deviation, by_group), worth, told])
        if not receivers:
            rows.append([_in_words(one), "no heads of these functions", None, None, None, None])
    columns = (
        "the paper",
        "receiver",
        "gate index of the first group",
        "of the second",
        "interaction",
        "labels by seed",
    )
    note = (
        f"Mean ± deviation over {len(examples)} seeds of {lab.preset.gate_pairs} pairs each, all names replaced, all "
        "else clean. 1 is AND, -1 OR, 0 ADDER; a group that does less than 1 % of the logit difference has no index."
    )
    return Table("The paper's examples, tested", columns, rows, note)


def _in_words(example: tuple[str, GateType, tuple[str, ...]]) -> str:
    receiver, kind, functions = example
    return f"{receiver} = {kind}({', '.join(functions) if len(functions) > 1 else f'{functions[0]} heads'})"


def stated_value(receivers: Sequence[Sequence[Any]], kind: GateType) -> float:
    """Mean gate index over receivers and groups, with the sign that the claim has; NaN if no group does anything."""
    known = [index for _, indices, _, _ in receivers for index in indices if index is not None]
    return (1 if kind == "AND" else -1) * statistics.fmean(known) if known else math.nan


def _stated_rulings(examples: Sequence[Sequence[Sequence[Any]]]) -> list[Ruling]:
    claims = [
        Claim(
            f"{_in_words(one)}.".capitalize().replace("and(", "AND(").replace("or(", "OR(").replace("s-inh", "S-inh"),
            f"{'mean' if one[1] == 'AND' else 'minus the mean'} gate index of the groups",
            {task_name(_ALL_NAMES): [stated_value(seed[place], one[1]) for seed in examples]},
            Between(_ACTS, 1.0),
            paper="an example in a figure",
        )
        for place, one in enumerate(STATED)
    ]
    return [rule(claim, Between(_ACTS, 1.0), method="roles, tested", primary=not i) for i, claim in enumerate(claims)]


def _tested_rulings(lab: Lab, seeds: Sequence[Mapping[str, Any]]) -> list[Ruling]:
    return rules(TESTED, Above(lab.preset.smallest), *_joined_claims(seeds, task_name(_TASK)))


def _tables(lab: Lab, studies: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]) -> list[Table]:
    def mean(values: Iterable[float]) -> float:
        known = [value for value in values if not math.isnan(value)]
        return statistics.fmean(known) if known else math.nan

    joined: list[list[Any]] = []
    reach: list[list[Any]] = []
    for ((method, task), seeds), kind in product(studies.items(), GATE_TYPES):
        some = [seed[kind] for seed in seeds]
        of = {name: mean(one[name] for one in some) for name in ("gates", "edges", "from MLPs")}
        parts = {
            what: [mean(one[what][part] for one in some) for part in ("n", "value", "chance")]
            for what in ("same", "alike", "crossed", "apart")
        }
        start = [METHOD_NAMES[method], task_name(task), lab.gate_size(task), kind]
        joined.append([*start, of["gates"], *parts["same"], *parts["alike"]])
        reach.append([*start, of["edges"], *parts["crossed"][1:], *parts["apart"][1:], of["from MLPs"]])
    about = (
        f"Means over seeds ({seeds_note(lab.preset.seeds, _methods(lab.preset))}). Chance: mean of {_PERMUTATIONS:,} "
        "permutations."
    )
    where = ("method", "task", "edges", "type")
    pairs = ("pairs of known function", "same function", "by chance")
    alike = ("pairs of heads", "similarity of attention", "by chance")
    far = ("layers crossed", "by chance", "layers between two senders", "by chance")
    return [
        Table(
            "What gates join: pairs of heads with edges of one type into one receiver",
            (*where, "gates", *pairs, *alike),
            joined,
            about,
        ),
        Table("How far gates reach", (*where, "edges found", *far, "edges from MLPs"), reach, about),
    ]


def beyond_chance(one: Mapping[str, Any], what: str) -> float:
    """NaN for too few pairs, or if chance cannot vary: heads of one function only."""
    found = one[what]
    tells = found["n"] >= _FEWEST_PAIRS and (what != "same" or 0 < found["chance"] < 1)
    return float(found["value"] - found["chance"]) if tells else math.nan


def _joined_claims(seeds: Sequence[Mapping[str, Any]], at: str) -> list[Claim]:
    """What the senders of gates have to do with each other."""
    claims: list[Claim] = []
    for kind, sign in (("AND", -1), ("OR", 1)):
        functions = "different functions" if sign < 0 else "the same function"
        for what, by, measure in (
            ("same", "the functions of heads", "share of pairs of heads with the same function"),
            ("alike", "how heads attend", "correlation of the attention of pairs of heads"),
        ):
            compared = f"chance less {measure}" if sign < 0 else f"{measure} less chance"
            values = [sign * beyond_chance(seed[kind], what) for seed in seeds]
            text = f"{kind} gates receive edges from {functions}, by {by}."
            claims.append(Claim(text, compared, {at: values}, paper="drawings"))
    return claims


def _rulings(lab: Lab, seeds: Sequence[Mapping[str, Any]], method: str, task: str) -> list[Ruling]:
    layers, at = lab.model.graph.n_layers, task_name(task)
    crossed = [{kind: float(seed[kind]["crossed"]["value"]) / layers for kind in GATE_TYPES} for seed in seeds]
    share = "as a share of all layers"
    return rules(
        METHOD_NAMES[method] if task == _TASK else f"{METHOD_NAMES[method]}, all names replaced",
        Above(lab.preset.smallest),
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


def _recall_table(recalls: Mapping[tuple[str, str, int], Sequence[Sequence[float]]]) -> Table:
    return Table(
        "Share of the published circuits' nodes that the circuits hold",
        ("task", "method", "edges", "Ns", "Dn", "Ns or Dn", "random circuits as large"),
        [
            [task_name(task), METHOD_NAMES[method], size, *map(statistics.fmean, zip(*seeds, strict=True))]
            for (task, method, size), seeds in recalls.items()
        ],
        "Means over seeds. Published: 26 heads for IOI (Wang et al. 2022), 8 heads and 4 MLPs for GT (Hanna et al. "
        "2023).",
    )


def _recall_ruling(lab: Lab, recalls: Mapping[tuple[str, str, int], Any], method: str) -> Ruling:
    values = {
        task_name(task): [either - chance for _, _, either, chance in seeds]
        for (task, of, _), seeds in recalls.items()
        if of == method
    }
    claim = Claim(
        "The components of the gate circuits are those of the published circuits.",
        "share of the published nodes in the Ns or Dn circuit, less that in random circuits as large",
        values,
        paper="drawings",
    )
    return rule(claim, Above(lab.preset.smallest), method=METHOD_NAMES[method])


EXPERIMENT = Experiment(
    name="graph-study",
    title="Graph study",
    claim="AND gates join different functions, OR gates the same one; ADDER gates join shallow and deep layers.",
    labels=("figsimplegate", "figgatecircuit"),
    measurements=_measurements,
    judge=_judge,
)
