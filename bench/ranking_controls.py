"""Is a learned ranking faithful for the right reason? Its circuits under conditions that it was not trained for.

    OMP_NUM_THREADS=1 python bench/ranking_controls.py --model smollm2-135m --task ioi --other ioi:corruption=all-names

One ranking by noising on 64 pairs, and what its circuits keep of the KL between the two runs, at every size:

- on other pairs, as everywhere else;
- on pairs with the other corruption, and with mean ablation, for which nothing was trained;
- of templates that the search has not seen (a second training, on half of the templates);
- from a random first ranking (a third training): the start should not decide;
- in an untrained model of the same shape (a fourth training): whatever it keeps there is not a task, since that model
  cannot do it. Its accuracy and its KL between the runs say so.

What more steps give: the KL of trainings of 100, 200, 350 (the default) and 700 steps, with their cost in F, the CPU
time of a forward pass of 32 pairs. And how steady it is: the Jaccard index of circuits by two seeds on the same pairs,
and on redrawn pairs, beside EAP's, and beside Edge Pruning's at `--edge-pruning EDGES`, which trains for each size.

Searches are in `--store`: what was interrupted goes on. Writes RESULTS/ranking-controls-MODEL-TASK.json, prints tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from measure import environment
from rich.console import Console
from rich.table import Table

import gatewise as gw
from gatewise.circuits.circuit import Circuit
from gatewise.engine.running import run_circuits
from gatewise.methods import Method, Ranking, discover_all, find_method
from gatewise.models.model import Model
from gatewise.statistics import kl_divergence, log_probabilities
from gatewise.tasks.pairs import Pairs

SIZES = {
    "smollm2-135m": (100, 200, 500, 1000, 2000, 5000),
    "gemma3-270m": (50, 100, 200, 500, 1000, 2000),
    "tiny": (10, 20, 50, 100, 200),
}
SEARCHED, HELD_OUT = 64, 128
STEPS = (100, 200, 350, 700)
PLAIN_PAIRS = 32  # of F
RESULTS = Path(__file__).parent / "results"


def kept(model: Model, pairs: Pairs, circuits: Sequence[Circuit], **options: Any) -> dict[str, Any]:
    """Measure KL and share by size, and what the whole model makes of the pairs."""
    ends = [model.graph.full(), model.graph.circuit([])]
    logits = run_circuits(model, pairs, [*ends, *circuits], **options)
    full, empty, *others = log_probabilities(logits).unbind()
    between = float(kl_divergence(full, empty).mean())
    kl = [float(kl_divergence(full, other).mean()) for other in others]
    return {
        "kl_empty": between,
        "kl": kl,
        "share": [1 - value / between for value in kl],
        "accuracy": float(pairs.pairwise_accuracy(logits[0]).float().mean()),
        "accuracy_of_circuits": pairs.pairwise_accuracy(logits[2:]).float().mean(dim=-1).tolist(),
    }


class Searches:
    """Searches by noising, each of which is done once."""

    def __init__(self, store: str) -> None:
        self.compute = gw.Compute(store=store)

    def __call__(
        self, model: Model, pairs: Pairs, method: str | Method, sizes: Sequence[int], seed: int
    ) -> tuple[Circuit, ...]:
        return discover_all(model, pairs, method, ["ns"], sizes=sizes, seed=seed, compute=self.compute)["ns"]


def plain_seconds(model: Model, pairs: Pairs) -> float:
    """Return F in CPU seconds: transformers' own forward pass of 32 pairs, the median of five."""
    seconds = []
    for _ in range(5):
        begin = time.process_time()
        with torch.no_grad():
            model.hf(pairs[:PLAIN_PAIRS].clean)
        seconds.append(time.process_time() - begin)
    return statistics.median(seconds)


def by_templates(pairs: Pairs) -> tuple[Pairs, Pairs]:
    """Cut pairs by template: half of the templates to search on, the others to test on."""
    names = sorted(set(pairs.templates))
    searched = set(names[::2])
    rows = range(len(pairs))
    return (
        pairs[[row for row in rows if pairs.templates[row] in searched]],
        pairs[[row for row in rows if pairs.templates[row] not in searched]],
    )


def untrained(model: Model) -> Model:
    """Make a model of the same shape with fresh weights."""
    torch.manual_seed(0)
    return gw.load_model(type(model.hf)(model.hf.config).eval(), tokenizer=model.tokenizer)


def overlap(first: Sequence[Circuit], second: Sequence[Circuit]) -> list[float]:
    """Return the Jaccard index of circuits of the same size."""
    return [len(a & b) / len(a | b) for a, b in zip(first, second, strict=True)]


def cost_of_steps(
    model: Model, data: gw.Task, sizes: Sequence[int], seed: int, search: Searches
) -> list[dict[str, Any]]:
    """Measure what trainings of more steps cost and give."""
    plain = plain_seconds(model, data.train)
    rows = []
    for steps in STEPS:
        circuits = search(model, data.train, Ranking(steps=steps), sizes, seed)
        cost = float(circuits[0].provenance["time"]["cpu_seconds"])
        rows.append({"steps": steps, "cost_f": cost / plain, **kept(model, data.test, circuits)})
    return rows


def controls(
    name: str, task: str, other: str | None, seed: int, edge_pruning: int | None, search: Searches
) -> dict[str, Any]:
    """Run all controls of one model and task."""
    model, sizes = gw.load_model(name), SIZES[name]
    data = gw.task(task, model, examples=SEARCHED, test_examples=HELD_OUT, seed=seed)
    console = Console(stderr=True)
    measured: dict[str, Any] = {}

    def note(condition: str, result: dict[str, Any]) -> None:
        measured[condition] = result
        console.print(condition, [round(share, 2) for share in result["share"]])

    circuits = search(model, data.train, "ranking", sizes, seed)
    note("other pairs", kept(model, data.test, circuits))
    note("other pairs, mean ablation", kept(model, data.test, circuits, ablation="mean"))
    if other is not None:
        otherwise = gw.task(other, model, examples=8, test_examples=HELD_OUT, seed=seed).test
        note("other corruption", kept(model, otherwise, circuits))
    many = gw.task(task, model, examples=2 * SEARCHED, test_examples=2, seed=seed).train
    if len(set(many.templates)) > 1:
        searched, tested = by_templates(many)
        note("other templates", kept(model, tested, search(model, searched, "ranking", sizes, seed)))
    note("random start", kept(model, data.test, search(model, data.train, Ranking(start="random"), sizes, seed)))
    blank = untrained(model)
    note("untrained model", kept(blank, data.test, search(blank, data.train, "ranking", sizes, seed)))
    redrawn = gw.task(task, model, examples=SEARCHED, test_examples=2, seed=seed + 1).train
    steadiness: dict[str, Any] = {}
    for method in ("ranking", "eap", "eap-ig"):
        first = circuits if method == "ranking" else search(model, data.train, find_method(method), sizes, seed)
        steadiness[method] = {
            "same pairs, other seed": overlap(first, search(model, data.train, method, sizes, seed + 1)),
            "redrawn pairs": overlap(first, search(model, redrawn, method, sizes, seed + 1)),
        }
    if edge_pruning is not None:
        size = (edge_pruning,)
        first = search(model, data.train, "edge-pruning", size, seed)
        steadiness[f"edge-pruning at {edge_pruning}"] = {
            "same pairs, other seed": overlap(first, search(model, data.train, "edge-pruning", size, seed + 1)),
            "redrawn pairs": overlap(first, search(model, redrawn, "edge-pruning", size, seed + 1)),
        }
    return {
        "model": name,
        "task": task,
        "seed": seed,
        "sizes": list(sizes),
        "kept": measured,
        "steps": cost_of_steps(model, data, sizes, seed, search),
        "jaccard": steadiness,
    }


def table(result: dict[str, Any]) -> Table:
    """Make a table of shares by condition and size."""
    shown = Table(title=f"share of the KL that circuits keep, {result['model']}, {result['task']}")
    for column in ("condition", "KL between runs", "accuracy", *(f"{size:,}" for size in result["sizes"])):
        shown.add_column(column)
    for condition, row in result["kept"].items():
        shares = (f"{share:.2f}" for share in row["share"])
        shown.add_row(condition, f"{row['kl_empty']:.3g}", f"{row['accuracy']:.2f}", *shares)
    for method, rows in result["jaccard"].items():
        for condition, values in rows.items():
            shown.add_row(f"Jaccard, {method}, {condition}", "", "", *(f"{value:.2f}" for value in values))
    return shown


def table_of_steps(result: dict[str, Any]) -> Table:
    """Make a table of KL by steps and size."""
    shown = Table(title=f"KL on held-out pairs, {result['model']}, {result['task']}")
    for column in ("steps", "cost in F", *(f"{size:,}" for size in result["sizes"])):
        shown.add_column(column)
    for row in result["steps"]:
        shown.add_row(str(row["steps"]), f"{row['cost_f']:.0f}", *(f"{kl:.3f}" for kl in row["kl"]))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description="Controls of learned ranking.")
    parser.add_argument("--model", default="smollm2-135m", choices=SIZES)
    parser.add_argument("--task", default="ioi")
    parser.add_argument("--other", help="the same task with another corruption")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--edge-pruning", type=int, metavar="EDGES", help="also how steady Edge Pruning is at this size"
    )
    parser.add_argument("--store", default=str(RESULTS / "store"), help="where searches are kept")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file")
    args = parser.parse_args()
    result = controls(args.model, args.task, args.other, args.seed, args.edge_pruning, Searches(args.store))
    result["environment"] = environment("cpu")
    args.out.mkdir(parents=True, exist_ok=True)
    name = f"ranking-controls-{args.model}-{args.task}.json"
    (args.out / name).write_text(json.dumps(result, indent=1) + "\n")
    console = Console(width=130)
    console.print(table(result))
    console.print(table_of_steps(result))


if __name__ == "__main__":
    main()
