"""How faithful circuits of each size are, and what finding them costs: all methods on held-out pairs of three tasks.

    OMP_NUM_THREADS=1 python bench/frontier.py --models smollm2-135m --tasks ioi --methods eap ranking --directions ns
    OMP_NUM_THREADS=1 python bench/frontier.py --collect        # table and figure of what is in the store

A cell is one search: model, task, seed, method, direction. Its pairs are drawn by the seed, which the search has too:
64 to search on, 128 held out. A finished cell is in the store, so that it can be run in parts, at the same time or one
after the other, and resumes. There is one row for each circuit: KL and the share kept by noising and by denoising,
pairwise and top-1 accuracy, completeness, and the areas over sizes of the whole cell.

Costs are in F, the CPU time of transformers' own forward pass of 32 of the task's pairs, timed before and after the
search. Use one thread for them. MIB's CPR and CMD are over its nine shares of the edges and the full graph, for methods
that rank all edges at once. The area of accuracy is that of pairwise accuracy over the logarithm of the size, divided
by its range. Edge Pruning trains anew for each size, so that it has one. ACDC has a few thresholds, on fewer pairs; its
circuits count if their size is within a quarter of one of the sizes. Methods of your own are `module:Name`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from measure import environment

import gatewise as gw
from gatewise.circuits.circuit import Circuit
from gatewise.circuits.mib import SHARES
from gatewise.engine.setting import Setting
from gatewise.evaluation.evaluations import VERSION, Evaluations, behaviours, normalise
from gatewise.methods.base import Method, Problem, SearchDirection
from gatewise.methods.discovery import discover_all
from gatewise.methods.provenance import ingredients
from gatewise.methods.registry import find_method
from gatewise.store import Store

SIZES = {"smollm2-135m": (100, 200, 500, 1000, 2000, 5000), "gemma3-270m": (50, 100, 200, 500, 1000, 2000)}
TRAINED_SIZE = {"smollm2-135m": 500, "gemma3-270m": 200}  # of Edge Pruning, and of the panels against F
TAUS = (0.03, 0.01, 0.003)  # of ACDC
NEAR = 1.25  # a circuit by a tau counts if its size is within this factor of one of the sizes
PLAIN_PAIRS = 32  # of F
MODELS, TASKS, METHODS = tuple(SIZES), ("ioi", "gt", "sa"), ("eap", "eap-ig", "ranking", "edge-pruning", "acdc")
DIRECTIONS: tuple[SearchDirection, ...] = ("ns", "dn", "ns+dn")
RESULTS = Path(__file__).parent / "results"
_SHOWN = (
    "kl",
    "share_ns",
    "share_dn",
    "accuracy",
    "top1_accuracy",
    "destroyed",
    "cpr",
    "cmd",
    "accuracy_area",
    "cost_f",
)


@dataclass(frozen=True)
class Cell:
    """One search, and how it is measured."""

    model: str
    task: str
    seed: int
    method: str
    direction: SearchDirection
    sizes: tuple[int, ...]
    examples: int
    test_examples: int
    taus: tuple[float, ...] = ()  # instead of sizes
    areas: bool = True

    @property
    def bound_method(self) -> Method:
        return find_method(self.method)

    def __str__(self) -> str:
        return f"{self.model} {self.task} seed {self.seed} {self.method} {self.direction}"


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """All cells that were asked for, those of one model and task together."""
    for model in options.models:
        sizes = tuple(options.sizes or SIZES.get(model, SIZES["gemma3-270m"]))
        for task in options.tasks:
            for seed in options.seeds:
                for name in options.methods:
                    method = find_method(name)
                    by_tau = name == "acdc"
                    trained = method.ranks_once or by_tau
                    for direction in options.directions if method.directed else ("ns",):
                        yield Cell(
                            model=model,
                            task=task,
                            seed=seed,
                            method=name,
                            direction=cast("SearchDirection", direction),
                            sizes=sizes if trained else (TRAINED_SIZE.get(model, sizes[len(sizes) // 2]),),
                            examples=options.acdc_examples if by_tau else options.examples,
                            test_examples=options.test_examples,
                            taus=tuple(options.taus) if by_tau else (),
                            areas=options.areas and method.ranks_once,
                        )


class Laboratory:
    """Models and tasks, loaded once, and the store of what was measured."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._model: gw.Model | None = None
        self._name = ""

    def model(self, name: str) -> gw.Model:
        if self._model is None or self._name != name:
            self._model, self._name = gw.load_model(name), name
        return self._model

    def task(self, cell: Cell) -> gw.Task:
        model = self.model(cell.model)
        return gw.task(cell.task, model, examples=cell.examples, test_examples=cell.test_examples, seed=cell.seed)

    def key(self, cell: Cell) -> dict[str, Any]:
        """Everything that determines the rows of a cell."""
        task, sizes = self.task(cell), {cell.direction: cell.sizes}
        problem = Problem(Setting(self.model(cell.model), task.train), (cell.direction,), sizes, seed=cell.seed)
        return {
            "what": "cell of the frontier",
            "cell": {"model": cell.model, "task": cell.task, "sizes": list(cell.sizes), "taus": list(cell.taus)},
            "search": ingredients(problem, cell.bound_method),
            "test": task.test.fingerprint,
            "areas": cell.areas,
            "evaluation": VERSION,
        }

    def rows(self, cell: Cell) -> list[dict[str, Any]]:
        """The rows of a cell, computed if they are not in the store."""
        rows: list[dict[str, Any]] = self.store.remember(self.key(cell), lambda: self._compute(cell))
        return rows

    def _compute(self, cell: Cell) -> list[dict[str, Any]]:
        model, task = self.model(cell.model), self.task(cell)
        before = plain_seconds(model, task.train)
        circuits, seconds = search(model, task, cell, self.store)
        plain = statistics.median([*before, *plain_seconds(model, task.train)])
        evaluations = gw.evaluate(model, task.test, circuits, random_circuits=0, seed=cell.seed)
        areas: dict[str, Any] = mib_areas(model, task, circuits[-1]) if cell.areas else {}
        areas["accuracy_area"] = accuracy_area(evaluations)
        shared: dict[str, Any] = {
            "model": cell.model,
            "task": cell.task,
            "seed": cell.seed,
            "method": cell.method,
            "direction": cell.direction,
            "search_pairs": len(task.train),
            "test_pairs": len(task.test),
            "f_seconds": plain,
        }
        rows = []
        for evaluation, cost in zip(evaluations, seconds, strict=True):
            rows.append({**shared, **measures(evaluation), **areas, "cost_f": cost / plain, "cpu_seconds": cost})
        return rows


def search(model: gw.Model, task: gw.Task, cell: Cell, store: Store) -> tuple[list[Circuit], list[float]]:
    """The circuits of a cell, and the CPU seconds that finding each took."""
    compute = gw.Compute(store=store)
    if not cell.taus:
        found = discover_all(
            model, task.train, cell.bound_method, [cell.direction], sizes=cell.sizes, seed=cell.seed, compute=compute
        )
        circuits = list(found[cell.direction])
    else:
        at_taus = []
        for tau in cell.taus:
            options: dict[str, Any] = {"threshold": tau, "seed": cell.seed, "compute": compute}
            at_taus.append(gw.discover(model, task.train, cell.bound_method, cell.direction, **options))
        circuits = [circuit for circuit in at_taus if near(len(circuit), cell.sizes)]
    return circuits, [float(circuit.provenance["time"]["cpu_seconds"]) for circuit in circuits]


def near(edges: int, sizes: Sequence[int]) -> bool:
    return any(size / NEAR <= edges <= size * NEAR for size in sizes)


def measures(evaluation: Any) -> dict[str, Any]:
    """The numbers of one circuit under short names."""
    denoised, denoised_empty = evaluation.dn_circuit, evaluation.dn_empty
    return {
        "edges": evaluation.edges,
        "graph_edges": evaluation.graph_edges,
        "kl": evaluation.faithfulness.mean,
        "kl_error": evaluation.faithfulness.error,
        "kl_empty": evaluation.empty.kl_from_full.mean,
        "share_ns": evaluation.recovered,
        "kl_dn": denoised.kl_from_full.mean,
        "kl_dn_error": denoised.kl_from_full.error,
        "kl_dn_empty": denoised_empty.kl_from_full.mean,
        "share_dn": evaluation.recovered_dn,
        "share_both": evaluation.recovered_both,
        "accuracy": evaluation.circuit.accuracy.mean,
        "accuracy_full": evaluation.full.accuracy.mean,
        "top1_accuracy": evaluation.circuit.top_accuracy.mean,
        "logit_diff_share": evaluation.recovered_logit_diff,
        "completeness": evaluation.completeness.mean,
        "destroyed": evaluation.destroyed,
    }


def mib_areas(model: gw.Model, task: gw.Task, ranking: Circuit) -> dict[str, float]:
    """MIB's CPR and CMD: trapezoids of the normalised logit difference over shares of the edges up to all."""
    circuits = [ranking_cut(ranking, max(1, round(share * model.graph.n_edges))) for share in SHARES]
    ends = [model.graph.full(), model.graph.empty()]
    full, empty, *sized = behaviours(Setting(model, task.test), [*ends, *circuits])
    kept = [normalise(behaviour.logit_diff, empty.logit_diff, full.logit_diff) for behaviour in sized]
    shares = torch.tensor([*SHARES, 1.0], dtype=torch.float64)
    values = torch.tensor([*kept, 1.0], dtype=torch.float64)
    return {
        "cpr": float(torch.trapezoid(values, shares)),
        "cmd": float(torch.trapezoid((1 - values).abs(), shares)),
    }


def ranking_cut(ranking: Circuit, size: int) -> Circuit:
    """The strongest edges of the ranking that a circuit's scores are."""
    assert ranking.scores is not None
    mask = torch.zeros(ranking.graph.n_edges, dtype=torch.bool)
    mask[torch.argsort(ranking.scores.abs(), descending=True, stable=True)[:size]] = True
    return Circuit(ranking.graph, mask)


def accuracy_area(evaluations: Evaluations) -> float | None:
    """Mean pairwise accuracy over the logarithm of the size; None with one size."""
    ordered = sorted(evaluations, key=lambda evaluation: evaluation.edges)
    if len({evaluation.edges for evaluation in ordered}) < 2:
        return None
    logs = torch.tensor([math.log(evaluation.edges) for evaluation in ordered], dtype=torch.float64)
    accuracy = torch.tensor([evaluation.circuit.accuracy.mean for evaluation in ordered], dtype=torch.float64)
    return float(torch.trapezoid(accuracy, logs) / (logs[-1] - logs[0]))


@torch.no_grad()
def plain_seconds(model: gw.Model, pairs: gw.Pairs, repeats: int = 3) -> list[float]:
    """CPU time of F."""
    tokens = pairs.clean.repeat(-(-PLAIN_PAIRS // len(pairs)), 1)[:PLAIN_PAIRS]
    seconds = []
    for _ in range(repeats + 1):
        started = time.process_time()
        model.hf(tokens)
        seconds.append(time.process_time() - started)
    return seconds[1:]  # the first call is slower


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds, and their range, for each model, task, method, direction and size."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in ("model", "task", "method", "direction", "edges"))].append(row)
    means = []
    for (model, task, method, direction, edges), group in groups.items():
        mean: dict[str, Any] = {"model": model, "task": task, "method": method, "direction": direction, "edges": edges}
        mean["seeds"] = len(group)
        for name in (*_SHOWN, "kl_dn", "kl_empty", "kl_dn_empty"):
            values = [row[name] for row in group if row.get(name) is not None]
            mean[name] = statistics.mean(values) if values else None
        mean["kl_range"] = (min(row["kl"] for row in group), max(row["kl"] for row in group))
        means.append(mean)
    return means


def as_markdown(means: Sequence[Mapping[str, Any]]) -> str:
    """One table for each model and task."""
    heads = (
        "method", "edges", "KL Ns", "range", "KL Dn", "share Ns", "share Dn", "accuracy", "top-1", "destroyed",
        "CPR", "CMD", "area", "F", "seeds",
    )  # fmt: skip
    lines = []
    for model, task in dict.fromkeys((mean["model"], mean["task"]) for mean in means):
        group = [mean for mean in means if (mean["model"], mean["task"]) == (model, task)]
        empty = f"empty circuit: KL {group[0]['kl_empty']:.3f} by noising, {group[0]['kl_dn_empty']:.3f} by denoising"
        lines += [f"### {task} in {model}", "", f"{empty}; means over seeds.", ""]
        lines += [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * (len(heads) - 1)}"]
        for mean in group:
            low, high = mean["kl_range"]
            cells_of_row = [
                f"{mean['method']} {mean['direction']}", f"{mean['edges']:,}", _number(mean["kl"], 3),
                f"{low:.3f} to {high:.3f}", _number(mean["kl_dn"], 3), _percent(mean["share_ns"]),
                _percent(mean["share_dn"]), _percent(mean["accuracy"]), _percent(mean["top1_accuracy"]),
                _percent(mean["destroyed"]), _number(mean["cpr"], 2), _number(mean["cmd"], 2),
                _number(mean["accuracy_area"], 2), _number(mean["cost_f"], 1), str(mean["seeds"]),
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells_of_row)} |")
        lines.append("")
    return "\n".join(lines)


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def draw(means: Sequence[Mapping[str, Any]], path: Path) -> None:
    """KL against edges, and below it, at one size, against F: a column for each model and task."""
    try:
        import matplotlib
    except ImportError:
        sys.exit("drawing needs matplotlib: pip install -c constraints.txt 'gatewise[figures]'")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "gatewise"  # the same file for the same numbers
    import matplotlib.pyplot as plt

    columns = list(dict.fromkeys((mean["model"], mean["task"]) for mean in means))
    names = list(dict.fromkeys((mean["method"], mean["direction"]) for mean in means))
    colours = {method: f"C{i}" for i, method in enumerate(dict.fromkeys(method for method, _ in names))}
    styles = {"ns": "-", "dn": ":", "ns+dn": "--"}
    figure, axes = plt.subplots(
        2, len(columns), figsize=(3.2 * len(columns) + 1.5, 6.4), layout="constrained", squeeze=False
    )
    for column, (model, task) in enumerate(columns):
        top, bottom = axes[0][column], axes[1][column]
        top.set(title=f"{task}, {model}", xscale="log", yscale="log", xlabel="edges", ylabel="KL by noising")
        size = TRAINED_SIZE.get(model)
        for method, direction in names:
            line = [mean for mean in means if (mean["model"], mean["task"]) == (model, task)]
            line = [mean for mean in line if (mean["method"], mean["direction"]) == (method, direction)]
            line.sort(key=lambda mean: mean["edges"])
            if not line:
                continue
            values = [mean["kl"] for mean in line]
            below = [mean["kl"] - mean["kl_range"][0] for mean in line]
            above = [mean["kl_range"][1] - mean["kl"] for mean in line]
            look = {"color": colours[method], "linestyle": styles[direction], "marker": "o", "markersize": 3}
            label = f"{method} {direction}"
            top.errorbar([mean["edges"] for mean in line], values, yerr=(below, above), label=label, capsize=2, **look)
            at_size = min(line, key=lambda mean: abs(math.log(mean["edges"] / (size or line[0]["edges"]))))
            bottom.plot([at_size["cost_f"]], [at_size["kl"]], label=label, **{**look, "markersize": 6})
        shown = size or "some"
        bottom.set(xscale="log", yscale="log", xlabel="cost of the search, F", ylabel=f"KL by noising, {shown} edges")
        for plot in (top, bottom):
            plot.grid(alpha=0.3)
    axes[0][-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.02, 1.0))
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Compute what is missing, unless --collect, and write JSON, table and figure of what was asked for."""
    options = _parse()
    store = Store(options.store)
    laboratory = Laboratory(store)
    rows: list[dict[str, Any]] = []
    missing, wanted = 0, list(cells(options))
    for number, cell in enumerate(wanted, 1):
        started = time.perf_counter()
        known = store.recall(laboratory.key(cell))
        if known is None and options.collect:
            missing += 1
            continue
        new = laboratory.rows(cell) if known is None else known
        rows += new
        if known is None:
            kl = ", ".join(f"{row['edges']}: {row['kl']:.3f}" for row in new) or "no circuit near a size"
            print(f"{number}/{len(wanted)} {cell}, {time.perf_counter() - started:.0f} s: KL {kl}", flush=True)
    if not rows:
        sys.exit(f"nothing is in {store.shown} yet: run it without --collect.")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    means = summary(rows)
    content = {"environment": environment("cpu"), "rows": rows}
    options.out.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(as_markdown(means))
    draw(means, options.out.with_suffix(".svg"))
    print(f"{len(rows)} rows of {len(wanted) - missing} cells, {missing} missing: {options.out}.json, .md, .svg")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help="of the package, or module:Name")
    parser.add_argument("--directions", nargs="+", default=list(DIRECTIONS), choices=DIRECTIONS)
    parser.add_argument("--sizes", nargs="+", type=int, help="edges [those of the model]")
    parser.add_argument("--examples", type=int, default=64, help="pairs to search on [64]")
    parser.add_argument("--acdc-examples", type=int, default=8, help="pairs that ACDC searches on [8]")
    parser.add_argument("--test-examples", type=int, default=128, help="held-out pairs [128]")
    parser.add_argument("--taus", nargs="+", type=float, default=list(TAUS), help="thresholds of ACDC")
    parser.add_argument("--areas", action=argparse.BooleanOptionalAction, default=True, help="MIB's CPR and CMD")
    parser.add_argument("--store", default=str(RESULTS / "frontier-store"), help="where cells are kept")
    parser.add_argument("--out", type=Path, default=RESULTS / "frontier", help="file without its suffix")
    parser.add_argument("--collect", action="store_true", help="compute nothing, write what is in the store")
    return parser.parse_args()


if __name__ == "__main__":
    main()
