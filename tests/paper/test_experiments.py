"""Every experiment runs on a very small preset, and its verdicts follow its numbers."""

import math
from pathlib import Path

import pytest
import torch

from gatewise import load_model
from gatewise.errors import GatewiseError
from gatewise.evaluation.knockouts import SampledColumn
from gatewise.paper.contract import Outcome, Verdict
from gatewise.paper.experiments import EXPERIMENTS, capabilities, completeness_metrics, contribution, gate_ablation
from gatewise.paper.experiments.completeness import judge_widest
from gatewise.paper.experiments.contribution import judge_similar
from gatewise.paper.experiments.cost import against, judge_twice
from gatewise.paper.experiments.curves import Comparison, Curves, Point, compare, judge
from gatewise.paper.experiments.gate_ablation import Removals, judge_hardly, judge_order, judge_same, share_of_one
from gatewise.paper.experiments.misalignment import judge_ratios, judge_slopes
from gatewise.paper.experiments.proportion import judge_equal, ring_sizes, shares
from gatewise.paper.experiments.stability import judge_growth, spread
from gatewise.paper.experiments.statistics import Interval, bootstrap, clusters, jackknife, ratio
from gatewise.paper.experiments.venn import circle_distance, lens_area
from gatewise.paper.figures import draw
from gatewise.paper.lab import Lab
from gatewise.paper.presets import QUICK
from gatewise.paper.toy import PAPER, ToyRow

SMALL = QUICK.changed(
    sizes=(20, 60),
    seeds=2,
    stability_seeds=2,
    pairs=4,
    held_out=8,
    repeats=3,
    sampled_pairs=4,
    sampled_sets=4,
    tasks=("ioi",),
    methods=("eap",),
    parameters={"edge-pruning": {"steps": 3}},
)
BOTH = SMALL.changed(methods=("eap", "edge-pruning"))
JUDGEMENTS = {"holds", "holds partly", "does not hold", "cannot be judged"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduction")


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("gate-ablation", BOTH),
        ("capabilities", SMALL),
        ("completeness", BOTH),
        ("faithfulness", BOTH),
        ("stability", BOTH),
        ("completeness-metrics", SMALL),
        ("misalignment", SMALL),
        ("contribution", BOTH),
        ("proportion", BOTH),
        ("cost", BOTH),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_experiment_gives_tables_verdicts_and_figures(name: str, preset: object, folder: Path) -> None:
    lab = Lab(preset, folder)  # type: ignore[arg-type]
    experiment = EXPERIMENTS[name]
    for cell in experiment.cells(lab.preset):
        lab.find(cell)
    for job in experiment.jobs(lab.preset):
        job.run(lab)
    outcome: Outcome = experiment.run(lab)
    assert outcome.tables
    assert outcome.verdicts
    assert outcome.figures
    for table in (*outcome.tables, *outcome.paper):
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert all(isinstance(verdict, Verdict) and verdict.because for verdict in outcome.verdicts)
    assert {verdict.judgement for verdict in outcome.verdicts} <= JUDGEMENTS
    for number, make in enumerate(outcome.figures.values()):
        svg, png = draw(make, folder / "figures", f"{name}-{number}")
        assert svg.stat().st_size > 2_000
        assert png.stat().st_size > 2_000


@pytest.mark.parametrize("module", [gate_ablation, contribution, completeness_metrics, capabilities])
def test_jobs_leave_nothing_to_compute(module: object, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(SMALL, folder)
    experiment = module.EXPERIMENT  # type: ignore[attr-defined]
    for cell in experiment.cells(SMALL):
        lab.find(cell)
    for job in experiment.jobs(SMALL):
        job.run(lab)

    def fail(*about: object, **more: object) -> None:
        raise AssertionError("computed again")

    for name in ("ablate_gates", "gate_contributions", "incompleteness_table", "table"):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, fail)
    assert experiment.run(lab).verdicts


def _curves(ns: list[float], both: list[float], empty: float) -> Curves:
    points = {}
    for size, (one, two) in enumerate(zip(ns, both, strict=True)):
        for direction, value in (("ns", one), ("ns+dn", two)):
            points["ioi", "eap", direction, size] = (Point((value,)), Point((1 - value,)))
    return Curves(points, {"ioi": (0.0, 1.0)}, {"ioi": (empty, 0.0)})


def test_saturated_cells_do_not_count() -> None:
    curves = _curves([0.1, 0.2, 0.3, 0.4, 0.99, 1.04], [0.2, 0.3, 0.4, 0.5, 0.96, 1.0], empty=1.0)
    found = compare(curves, "ns+dn", "ns", 0, ["eap"], unsaturated=True)
    assert len(found.differences) == 4
    assert found.saturated == 2
    assert found.larger == 4
    assert len(compare(curves, "ns+dn", "ns", 0, ["eap"]).differences) == 6
    assert len(compare(curves, "ns+dn", "ns", 1, ["eap"], unsaturated=True).differences) == 4
    assert "2 saturated cells" in str(found)


def test_one_direction_short_of_the_empty_circuit_is_not_saturated() -> None:
    found = compare(_curves([0.9], [1.0], empty=1.0), "ns+dn", "ns", 0, ["eap"], unsaturated=True)
    assert found.differences == pytest.approx((0.1,))
    assert judge(found, larger=True) == "cannot be judged"


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([1.0] * 6, "holds"),
        ([1.0] * 4, "holds partly"),  # a sign test of four cannot be below 0.05
        ([1.0, 1.0, 1.0, -1.0], "holds partly"),
        ([-1.0] * 6, "does not hold"),
        ([0.1, 0.1, 0.1, 0.1, -1.0], "does not hold"),  # the mean says otherwise
        ([0.0] * 6, "does not hold"),
        ([1.0] * 3, "cannot be judged"),
    ],
)
def test_judging_a_comparison(differences: list[float], expected: str) -> None:
    assert judge(Comparison(tuple(differences)), larger=True) == expected
    assert judge(Comparison(tuple(-d for d in differences)), larger=False) == expected


def test_the_widest_gap_has_to_be_that_of_eap() -> None:
    wide, narrow = Comparison((0.5,) * 6), Comparison((0.1,) * 6)
    assert judge_widest({"eap": wide, "acdc": narrow}) == "holds"
    assert judge_widest({"eap": Comparison((0.5,) * 3), "acdc": narrow}) == "holds partly"
    assert judge_widest({"eap": narrow, "acdc": wide}) == "does not hold"
    assert judge_widest({"eap": Comparison((-0.1,) * 6), "acdc": Comparison((-0.5,) * 6)}) == "does not hold"
    assert judge_widest({"eap": Comparison(()), "acdc": wide}) == "cannot be judged"


def _gates(one: float, two: float, receivers: int = 6) -> list[Removals]:
    return [Removals(f"m{i}", [one], [one], [two]) for i in range(receivers)]


def test_gates_are_judged_by_the_share_of_one_edge() -> None:
    alike, quarter, none = (share_of_one(_gates(one, 1.0)) for one in (1.0, 0.25, 0.0))
    assert (alike.value, quarter.value, none.value) == (1.0, 0.25, 0.0)
    assert judge_same(alike) == "holds"
    assert judge_same(quarter) == "does not hold"
    assert judge_hardly(none) == "holds"
    assert judge_hardly(quarter) == "does not hold"
    assert judge_order({"AND": alike, "ADDER": quarter, "OR": none}) == "holds"
    assert judge_order({"AND": quarter, "ADDER": alike, "OR": none}) == "does not hold"
    assert judge_same(share_of_one(_gates(1.0, 1.0, 3))) == "cannot be judged"
    assert judge_hardly(share_of_one([])) == "cannot be judged"


def test_wide_intervals_hold_only_partly() -> None:
    assert judge_same(Interval(1.0, 0.2, 1.8, 9)) == "holds partly"
    assert judge_hardly(Interval(0.05, -0.5, 0.5, 9)) == "holds partly"
    wide = {"AND": Interval(0.9, 0.3, 1.2, 9), "ADDER": Interval(0.5, 0.1, 0.9, 9), "OR": Interval(0.1, 0, 0.6, 9)}
    assert judge_order(wide) == "holds partly"  # type: ignore[arg-type]


def test_similar_effects() -> None:
    assert judge_similar([(1.0, 1.5)] * 5) == ("holds", 5)
    assert judge_similar([(1.0, 1.5)] * 3 + [(1.0, 9.0)] * 2) == ("holds partly", 3)
    assert judge_similar([(1.0, 9.0)] * 4 + [(-1.0, -1.0)]) == ("does not hold", 0)
    assert judge_similar([(1.0, 1.0)])[0] == "cannot be judged"


def test_cost() -> None:
    times = {("ioi", "eap", "ns"): [1.0, 1.0], ("ioi", "eap", "dn"): [1.0, 1.0], ("ioi", "eap", "ns+dn"): [2.0, 2.0]}
    found = against(times, ["ioi"], "eap", ("ns",))
    assert found.value == 2.0
    assert judge_twice([found]) == "holds"
    assert against(times, ["ioi"], "eap", ("ns", "dn")).value == 1.0
    assert judge_twice([Interval(2.0, 1.5, 2.6, 5)]) == "holds partly"
    assert judge_twice([Interval(2.15, 1.99, 2.32, 5)]) == "holds partly"
    assert judge_twice([Interval(3.0, 2.8, 3.2, 5)]) == "does not hold"
    assert judge_twice([]) == "cannot be judged"


def test_misalignment_verdicts() -> None:
    assert judge_slopes([-0.9, -0.8, -0.7, -0.9, 0.1], rising=False) == ("holds", 4)
    assert judge_slopes([0.9, 0.8, -0.7], rising=True) == ("holds partly", 2)
    assert judge_slopes([0.9, 0.8, 0.7], rising=False) == ("does not hold", 0)
    assert judge_slopes([math.nan], rising=True)[0] == "cannot be judged"
    assert judge_ratios([(1.0, 0.1), (1.1, 0.2)]) == "holds"
    assert judge_ratios([(1.0, 0.1), (1.1, 0.2), (0.7, 0.0)]) == "holds partly"
    assert judge_ratios([(0.7, 0.1), (1.6, 0.2)]) == "does not hold"
    assert judge_ratios([(1.0, 1.0), (1.0, 0.9), (1.0, 0.1)]) == "cannot be judged"  # most sizes are as good


def test_stability_of_known_circuits() -> None:
    graph = load_model("planted:combined").graph
    one, other, third = (graph.circuit(graph.edges[i : i + 2]) for i in (0, 1, 2))
    found = spread({"ns": [one, other, third], "ns+dn": [one, one, other]})
    assert found.mean("ns") == pytest.approx((2 + 2 + 4) / 3)
    assert found.mean("ns+dn") == pytest.approx(4 / 3)
    assert found.difference() == pytest.approx(4 / 3)
    without = [found.difference(i) for i in range(3)]  # distances without the first, the second, the third
    assert without == pytest.approx([2 - 2, 4 - 2, 2 - 0])
    assert found.error == pytest.approx(math.sqrt(2 / 3 * sum((d - sum(without) / 3) ** 2 for d in without)))


def test_stability_leaves_out_methods_with_one_seed() -> None:
    stability = EXPERIMENTS["stability"]
    some = BOTH.changed(stability_seeds={"eap": 2, "edge-pruning": 1})
    assert {cell.method for cell in stability.cells(some)} == {"eap"}
    stability.check(some)
    with pytest.raises(GatewiseError, match="several seeds, and there is one"):
        stability.check(BOTH.changed(stability_seeds=1))


def test_growth() -> None:
    assert judge_growth([[1, 2, 3], [2, 3, 9]]) == ("holds", 2)
    assert judge_growth([[1, 2, 3], [1, 2, 3], [3, 2, 1]]) == ("holds partly", 2)
    assert judge_growth([[3, 2, 1]]) == ("does not hold", 0)
    assert judge_growth([[1, 2]])[0] == "cannot be judged"


def test_proportions() -> None:
    even = {"AND": 0.3, "OR": 0.3, "ADDER": 0.3, "outside": 0.1}
    uneven = {"AND": 0.1, "OR": 0.1, "ADDER": 0.8, "outside": 0.0}
    assert judge_equal([even] * 5) == ("holds", 5)
    assert judge_equal([even, even, uneven]) == ("holds partly", 2)
    assert judge_equal([uneven] * 3) == ("does not hold", 0)
    assert judge_equal([even])[0] == "cannot be judged"
    assert ring_sizes((100, 200, 500, 1_000, 2_000, 5_000)) == (100, 500, 1_000, 5_000)
    assert ring_sizes((3, 6, 11, 22, 56, 112, 223, 558)) == (11, 56, 112, 558)
    assert ring_sizes((20, 60)) == (20, 60)


def test_shares_of_the_joint_circuit_sum_to_one(folder: Path) -> None:
    found = shares(Lab(SMALL, folder).gates("ioi", "eap", 60))
    assert sum(found.values()) == pytest.approx(1.0)
    assert found["ADDER"] > 0


def _row(entries: tuple[object, ...]) -> ToyRow:
    recovery = dict(zip(("AND", "OR", "ADDER"), entries[:3], strict=True))
    return ToyRow("ns", "eap", recovery, {}, {}, faithful=bool(entries[3]), complete=bool(entries[4]))  # type: ignore[arg-type]


def test_capabilities_are_judged_entry_by_entry() -> None:
    printed = PAPER["ns", "eap"]
    assert capabilities.judge_rows([_row(printed)]) == ("holds", 5, 5)
    assert capabilities.judge_rows([_row(("none", *printed[1:]))]) == ("holds partly", 4, 5)
    assert capabilities.judge_rows([_row(("none", "full", "none", True, True))]) == ("does not hold", 0, 5)


def _line(
    deviation: float, new: tuple[float, ...], draws: tuple[float, float] = (0.4, 0.1)
) -> completeness_metrics.Line:
    sampled = tuple(SampledColumn(n, 1.0, 0.5, over, deviation) for n, over in zip((5, 30), draws, strict=True))
    return completeness_metrics.Line(10, "eap", "ns", sampled, new, empty=2.0)


def test_metrics_are_compared_where_the_new_one_is_not_saturated() -> None:
    steady, saturated = (1.0, 1.01), (2.0, 2.0)
    assert completeness_metrics.judge_larger([_line(0.5, steady)] * 3)[0] == "holds"
    assert completeness_metrics.judge_larger([_line(0.001, steady)] * 3)[0] == "does not hold"
    judgement, compared = completeness_metrics.judge_larger([_line(0.5, saturated)] * 3)
    assert judgement == "cannot be judged"
    assert compared.saturated == 3
    assert completeness_metrics.judge_falling([_line(0.5, steady)] * 6)[0] == "holds"
    assert completeness_metrics.judge_falling([_line(0.5, steady, (0.1, 0.4))] * 6)[0] == "does not hold"


def test_the_bootstrap_draws_clusters_together() -> None:
    values = [("a", 1.0, 1.0)] * 50 + [("b", 0.0, 1.0)] * 50
    found = bootstrap(clusters(values), ratio)
    assert found.n == 2
    assert (found.low, found.value, found.high) == (0.0, 0.5, 1.0)
    assert math.isnan(bootstrap([], ratio).value)
    assert math.isnan(bootstrap([(1.0, 2.0)], ratio).low)
    mean = torch.arange(10.0)
    error = jackknife(lambda i: float(mean[[j for j in range(10) if j != i]].mean()), 10)
    assert error == pytest.approx(float(mean.std()) / math.sqrt(10))


def test_venn_areas() -> None:
    assert lens_area(1, 1, 0) == pytest.approx(math.pi)
    assert lens_area(1, 1, 2) == 0
    distance = circle_distance(2, 1, 1.5)
    assert lens_area(2, 1, distance) == pytest.approx(1.5)
