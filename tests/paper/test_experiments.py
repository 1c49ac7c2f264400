"""Every experiment runs on a very small preset, and its rulings follow its numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gatewise import load_model
from gatewise.errors import GatewiseError
from gatewise_paper.claims import JUDGEMENTS
from gatewise_paper.experiment import Measurement, Outcome, Search, SeedKey
from gatewise_paper.experiments import EXPERIMENTS, capabilities, completeness_metrics, cost
from gatewise_paper.experiments.contribution import WEIGHTS, Effect, compared, mean_effect
from gatewise_paper.experiments.cost import against
from gatewise_paper.experiments.curves import BehaviourKey, Curves, Point
from gatewise_paper.experiments.gate_ablation import Removals, has_effect, share_of_one
from gatewise_paper.experiments.misalignment import best_ratio, make_curve, range_of_sums, slope
from gatewise_paper.experiments.proportion import fewest_or, ring_sizes, shares, unequal
from gatewise_paper.experiments.stability import Spread, growth, overlaps
from gatewise_paper.experiments.unlearning import largest_loss
from gatewise_paper.figures import draw
from gatewise_paper.lab import Lab
from gatewise_paper.measured import group, of_kind, values_by_task
from gatewise_paper.measures.misalignment import Score
from gatewise_paper.presets import QUICK, Ablating, Fitting, Preset, Testing
from gatewise_paper.runner import judge, merge_searches, reproduce
from gatewise_paper.tested_gates import TESTED, TestedKey
from gatewise_paper.toy_models import PAPER, ToyRow


def with_seeds(preset: Preset, experiment: str, **seeds: int) -> Preset:
    """The same preset, with other seeds of one experiment; methods are written with an underscore."""
    setups = dict(preset.setups)
    for method, count in seeds.items():
        setup = setups[method.replace("_", "-")]
        own = {**setup.own_seeds, experiment: count}
        setups[method.replace("_", "-")] = replace(setup, own_seeds=own)
    return replace(preset, setups=setups)


SMALL = QUICK.changed(
    sizes=(20, 60),
    seeds=2,
    pairs=2,
    held_out=4,
    ablating=Ablating(repeats=3),
    sampled_pairs=4,
    fitting=Fitting(pairs=4, sets=4),
    testing=Testing(pairs=16, seeds=1),
    tasks=("ioi",),
    methods=("eap",),
    parameters={"edge-pruning": {"steps": 3}},
)
SMALL = with_seeds(with_seeds(SMALL, "stability", eap=3, edge_pruning=3), "misalignment", eap=1)
BOTH = SMALL.changed(methods=("eap", "edge-pruning"))
TABLES_ONLY = ("capabilities", "stability", "completeness-metrics", "unlearning", "cost")  # in the paper, too


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduction")


def _failing(one: Measurement) -> Measurement:
    """The same measurement, which cannot be done again."""

    def fail(lab: Lab, key: object) -> None:
        raise AssertionError(f"{one} is computed again")

    fail.__module__, fail.__name__ = one.work.__module__, one.work.__name__
    return replace(one, work=fail)


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_an_experiment_measures_each_thing_once_and_gives_tables_rulings_and_figures(name: str, folder: Path) -> None:
    """No key twice; and once measured, it is judged without computing anything."""
    slow = ("capabilities", "completeness-metrics", "misalignment", "graph-study", "unlearning")
    lab = Lab(SMALL if name in slow else BOTH, folder)
    experiment = EXPERIMENTS[name]
    wanted = list(experiment.measurements(lab))
    assert len({one.key for one in wanted}) == len(wanted)
    judge(lab, experiment, wanted)
    outcome: Outcome = judge(Lab(lab.preset, folder), experiment, map(_failing, wanted))
    assert outcome.tables
    assert outcome.rulings
    assert bool(outcome.figures) == (name not in TABLES_ONLY)
    for table in (*outcome.tables, *outcome.paper):
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert all(ruling.because and ruling.judgement in JUDGEMENTS for ruling in outcome.rulings)
    primary = [ruling.method for ruling in outcome.rulings if ruling.primary]
    assert len(primary) == len(set(primary)), "one primary claim for each method"
    for number, make in enumerate(outcome.figures.values()):
        svg, png = draw(make, folder / "figures", f"{name}-{number}")
        assert svg.stat().st_size > 2_000
        assert png.stat().st_size > 2_000


def test_searches_are_merged() -> None:
    some = [Search("ioi", "eap", 0, ("dn",)), Search("ioi", "acdc", 0, ("ns",)), Search("ioi", "eap", 0, ("ns", "dn"))]
    merged = [Search("ioi", "acdc", 0, ("ns",)), Search("ioi", "eap", 0, ("ns", "dn"))]
    assert list(merge_searches(some).items()) == [(search.name, search) for search in merged]


def test_what_fails_fails_its_experiment_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(lab: Lab, key: object) -> None:
        raise GatewiseError("there is no clock")

    monkeypatch.setattr(cost, "seconds", fail)
    preset = SMALL.changed(seeds=1, sizes=[20])
    with pytest.raises(GatewiseError, match=r"1 of 2 experiments failed: cost: .*there is no clock"):
        reproduce(["proportion", "cost"], preset, out=tmp_path, workers=1, log=False)
    assert list(json.loads((tmp_path / "results.json").read_text())["experiments"]) == ["proportion"]


def test_groups_keep_the_order_of_measuring() -> None:
    some = {SeedKey("ioi", "eap", 1): "b", SeedKey("ioi", "eap", 0): "a", SeedKey("gt", "eap", 0): "c"}
    assert group(some, "task") == {"ioi": ["b", "a"], "gt": ["c"]}
    assert group(some, "method", "seed") == {("eap", 1): ["b"], ("eap", 0): ["a", "c"]}
    assert of_kind({**some, BehaviourKey("ioi", "eap", "ns", 0, "completeness", (1,)): "d"}, SeedKey) == some
    lengths = values_by_task(group(some, "task", "method"), "eap", lambda task, letter: len(task + letter))
    assert lengths == {"IOI": [4, 4], "GT": [3]}


def test_presets_say_which_sizes_are_judged(folder: Path) -> None:
    chosen = {"ioi": {"completeness": {"judged": (60, 999), "primary": 60}}}
    sizes = Lab(BOTH.changed(calibration=chosen), folder).sizes
    assert sizes.judged("completeness", *BOTH.methods) == {"ioi": [60]}
    assert sizes.judged("faithfulness", *BOTH.methods) == {"ioi": [20, 60]}
    setups = {**BOTH.setups, "edge-pruning": replace(BOTH.setups["edge-pruning"], sizes=(60, 99))}
    other = Lab(replace(BOTH, setups=setups), folder).sizes
    assert other.common("ioi") == [60]
    assert other.judged("stability", "eap") == {"ioi": [20, 60]}


def test_gates_have_pairs_of_their_own(folder: Path) -> None:
    lab = Lab(SMALL.changed(testing=Testing(pairs=5, seeds=2)), folder)
    searched = [text for seed in range(3) for text in lab.pairs("ioi", "eap", seed).clean_text]
    tested = [text for seed in range(2) for text in lab.gate_pairs("ioi", seed).clean_text]
    assert len(tested) == 10
    every = [*searched, *tested, *lab.held_out("ioi").clean_text]
    assert len(set(every)) == len(every)


def test_differences_of_directions_are_by_seed_and_normalised() -> None:
    levels = {"ns": 1.0, "dn": 3.0}
    values = {Point("ioi", "eap", d, "", size): [x * size, x] for d, x in levels.items() for size in (10, 20)}
    values |= {Point("ioi", "eap", d, "connected", 10): [x, x] for d, x in (("ns", 1.0), ("dn", 2.0))}
    curves = Curves(values, {"ioi": (0.0, 4.0)})
    assert curves.differences("dn", "ns", "eap", {"ioi": [10, 20]}) == {"IOI": [30.0, 2.0]}
    assert curves.differences("dn", "ns", "eap", {"ioi": [10]}, normalised=True) == {"IOI": [5.0, 0.5]}
    assert curves.differences("dn", "ns", "eap", {"ioi": [10]}, variant="connected") == {"IOI": [1.0, 1.0]}
    assert all(map(math.isnan, curves.differences("dn", "ns", "eap", {"ioi": []})["IOI"]))  # no size says anything


def test_gates_without_an_effect_do_not_count() -> None:
    strong, weak = Removals("m1", [0.25], [0.25], [1.0]), Removals("m2", [0.01], [0.01], [0.01])
    assert has_effect(strong, 0.1)
    assert not has_effect(weak, 0.1)
    assert share_of_one([strong, weak], 0.1) == 0.25
    assert share_of_one([strong, weak], 0.0) == pytest.approx(0.26 / 1.01)
    assert math.isnan(share_of_one([weak], 0.1))


def test_effects_are_compared_by_factor() -> None:
    large, small = [Effect("m1", 2, 0.4), Effect("m2", 1, 0.2)], [Effect("m3", 1, 0.1)]
    assert mean_effect(large, WEIGHTS["gate"]).value == pytest.approx(0.3)
    assert mean_effect(large, WEIGHTS["edge"]).value == pytest.approx(0.2)
    assert compared(large, [small], WEIGHTS["gate"], 0.01) == pytest.approx(0.5)  # a factor of three
    assert compared(large, [small], WEIGHTS["edge"], 0.01) == pytest.approx(1 / 3)
    assert math.isnan(compared(large, [small], WEIGHTS["gate"], 1.0))
    assert math.isnan(compared(large, [[]], WEIGHTS["gate"], 0.01))


def test_cost_is_a_ratio_of_sums() -> None:
    times = [{"ns": 1.0, "dn": 2.0, "ns+dn": 3.0}, {"ns": 3.0, "dn": 2.0, "ns+dn": 5.0}]
    seeds = [{direction: {"F": f} for direction, f in seed.items()} for seed in times]
    assert against(seeds, ("ns",)) == 2.0
    assert against(seeds, ("ns", "dn")) == 1.0


def _score(mean: float, std: float = 0.1) -> Score:
    reason = "no pair" if math.isnan(mean) else None
    return Score(mean, std, (0.0, 0.0), 4, 0, 10, 5, 10, reason)


def test_the_best_size_has_the_smallest_sum_of_scores() -> None:
    means = [(math.nan, 1.0), (0.5, 1.0), (0.3, 1.0), (0.3, 1.0)]
    scores = [{"AND": _score(a), "OR": _score(b)} for a, b in means]
    curve = make_curve(100, [60, 80, 110, 140], scores)  # type: ignore[arg-type]
    assert curve["best"] == [100 / 110, 2]  # of equal sums the one nearest to 1 : 1; 80 is within two standard errors
    assert curve["AND"] == [None, [0.5, 0.05], [0.3, 0.05], [0.3, 0.05]]
    assert make_curve(100, [60], scores[:1])["best"] is None  # type: ignore[arg-type]
    assert make_curve(100, [80, 110], [{"AND": _score(x, 0.01), "OR": _score(1.0, 0.01)} for x in (0.5, 0.3)])[
        "best"
    ] == [100 / 110, 0]


def test_misalignment_curves() -> None:
    curve = {"sizes": [6, 8, 10], "AND": [[3.0, 0.1], [2.0, 0.1], [1.0, 0.1]], "OR": [None, [1.0, 0.1], [2.0, 0.1]]}
    assert slope(curve, "AND") == pytest.approx(-1)
    assert math.isnan(slope(curve, "OR"))
    assert best_ratio({**curve, "best": [1.1, 0]}) == 1.1
    assert math.isnan(best_ratio({**curve, "best": [1.1, 1]}))  # half of the other sizes are as good
    assert math.isnan(best_ratio({**curve, "best": None}))
    assert math.isnan(best_ratio({**curve, "best": [1.1, 0]}, floor=1.0))  # sums of 3 and 3
    assert range_of_sums({**curve, "OR": [[1.0, 0.1], [1.0, 0.1], [2.5, 0.1]]}) == pytest.approx(1.0)  # 4, 3 and 3.5
    assert math.isnan(range_of_sums({**curve, "OR": [None] * 3}))


def test_stability_of_known_circuits() -> None:
    graph = load_model("synthetic:combined").graph
    one, other, third = (graph.circuit(graph.edges[i : i + 2]) for i in (0, 1, 2))
    both = {"ns": overlaps([one, other, third]), "ns+dn": overlaps([one, one, other])}
    found = Spread(both, 3, {"ns": 2.0, "ns+dn": 4.0})
    assert found.mean("ns") == pytest.approx((2 + 2 + 4) / 3)
    assert found.mean("ns+dn") == pytest.approx(4 / 3)
    assert found.difference() == pytest.approx(4 / 3)
    without = [found.difference([j for j in range(3) if j != i]) for i in range(3)]
    assert without == pytest.approx([2 - 2, 4 - 2, 2 - 0])
    assert found.error == pytest.approx(math.sqrt(2 / 3 * sum((d - sum(without) / 3) ** 2 for d in without)))
    assert found.by_seed() == pytest.approx([3 * 4 / 3 - 2 * d for d in without])
    assert (found.share("ns"), found.share("ns+dn")) == pytest.approx((8 / 3 / 4, 4 / 3 / 8))
    assert sum(found.shares_by_seed("ns", "ns+dn")) / 3 == pytest.approx(8 / 3 / 4 - 4 / 3 / 8)
    assert found.shares_by_seed("ns") == pytest.approx([3 * 8 / 12 - 2 * d for d in (2 / 4, 4 / 4, 2 / 4)])
    assert growth({2: found, 4: found, 8: found}) == pytest.approx([0.0] * 3)
    assert all(map(math.isnan, growth({2: found, 4: found})))


def test_stability_leaves_out_methods_with_one_seed(folder: Path) -> None:
    stability = EXPERIMENTS["stability"]
    some = with_seeds(BOTH, "stability", eap=2, edge_pruning=1)
    assert {one.key.method for one in stability.measurements(Lab(some, folder))} == {"eap"}
    stability.check(some)
    with pytest.raises(GatewiseError, match="several seeds, and there is one"):
        stability.check(BOTH.changed(seeds=1))


def test_proportions() -> None:
    assert unequal({"AND": 0.3, "OR": 0.3, "ADDER": 0.3, "outside": 0.1}) == pytest.approx(0.0)
    assert unequal({"AND": 0.1, "OR": 0.1, "ADDER": 0.8, "outside": 0.0}) == pytest.approx(0.8 - 1 / 3)
    assert fewest_or({"AND": 0.2, "OR": 0.1, "ADDER": 0.7, "outside": 0.0}) == pytest.approx(0.1)
    assert ring_sizes((100, 200, 500, 1_000, 2_000, 5_000)) == (100, 500, 1_000, 5_000)
    assert ring_sizes((3, 6, 11, 22, 56, 112, 223, 558)) == (11, 56, 112, 558)
    assert ring_sizes((20, 60)) == (20, 60)


def test_shares_of_the_joint_circuit_sum_to_one(folder: Path) -> None:
    lab = Lab(SMALL, folder)
    found = shares(lab.circuits("ioi", "eap", "ns+dn")[60], lab.gates("ioi", "eap", 60))
    assert sum(found.values()) == pytest.approx(1.0)
    assert found["ADDER"] > 0


def _row(entries: tuple[object, ...]) -> ToyRow:
    recovery = dict(zip(("AND", "OR", "ADDER"), entries[:3], strict=True))
    return ToyRow("ns", "eap", recovery, {}, faithful=entries[3] == "yes", complete=entries[4] == "yes")  # type: ignore[arg-type]


def test_capabilities_are_judged_entry_by_entry() -> None:
    printed = PAPER["ns", "eap"]
    as_printed, other = (capabilities.method_rulings([_row(row)])[0] for row in (printed, ("none", *printed[1:])))
    assert (as_printed.judgement, other.judgement) == ("supported", "contradicted")
    assert "4 of 5" in other.because


def test_deviations_of_both_metrics_by_seed() -> None:
    values = torch.zeros(2, 3, 30, dtype=torch.float64)
    values[1] += 1.0  # the sampled metric differs between seeds
    values[:, 1, 0] = 0.3  # and between draws, which more K average out
    line = completeness_metrics.Line(10, "eap", "ns", values, (1.0, 1.0), empty=2.0)
    assert completeness_metrics.deviates_more(line) == pytest.approx([0.25, 0.25])
    assert all(value > 0.5 for value in completeness_metrics.falls(line))
    higher = completeness_metrics.Line(10, "eap", "ns", values + 1.0, (1.0, 1.0), empty=2.0)
    assert completeness_metrics.more_complete(higher, line) == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("name", ["contribution", "proportion"])
def test_gates_may_be_tested_on_some_tasks_alone(name: str, tmp_path: Path) -> None:
    for of, expected in ((("ioi",), {"ioi"}), ((), set())):
        lab = Lab(SMALL.changed(tasks=("ioi", "sa"), tested_tasks=of), tmp_path)
        experiment = EXPERIMENTS[name]
        measured = list(experiment.measurements(lab))
        assert {one.key.task for one in measured if isinstance(one.key, TestedKey)} == expected
        outcome = judge(lab, experiment, measured)
        assert any(ruling.method == TESTED for ruling in outcome.rulings) == bool(of)
        assert all(make() is not None for make in outcome.figures.values())


def test_what_else_is_lost_when_a_behaviour_is_gone() -> None:
    kept = [(1.0, [1.0, 0.8, 0.0]), (0.9, [0.9] * 3)]
    assert largest_loss([0.9, 0.1, 0.0], (1.0, 0.0), kept) == pytest.approx(0.2)
    assert math.isnan(largest_loss([0.9] * 3, (1.0, 0.0), kept))
    assert math.isnan(largest_loss([0.9, 0.1, 0.0], (0.0, 0.0), kept))
