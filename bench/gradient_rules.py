"""Gradient rules of EAP and EAP-IG: which one finds the most faithful circuits, at equal numbers of edges.

    python bench/gradient_rules.py --models smollm2-135m gemma3-270m --out build/gradient-rules.csv
    python bench/gradient_rules.py --table build/gradient-rules.csv

Searches on some pairs and measures KL(reference || circuit) on held-out ones, under Ns and under Dn: a row of the file
for each circuit. What the file has already is not computed again, so that a run can be stopped. `--table` prints what
docs/gradient-rules.md shows. `--cost` prints the CPU time of all methods, in turns, as ratios to EAP's and EAP-IG's.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import gatewise as gw
from gatewise.engine import Setting
from gatewise.evaluation.evaluations import behaviours
from gatewise.methods import Eap, EapIg, Method
from gatewise.models.gradient_rules import RuleName

SIZES = {"smollm2-135m": (100, 200, 500, 1000, 2000, 5000)}
OTHER_SIZES = (50, 100, 200, 500, 1000, 2000)
RULES: tuple[RuleName, ...] = ("plain", "constant-norm", "gim", "relp")
METHODS: dict[str, Method] = {f"eap {rule}": Eap(rule=rule) for rule in RULES}
METHODS |= {f"eap-ig {rule}": EapIg(rule=rule) for rule in RULES}
METHODS |= {
    "eap-ig path": EapIg(path=True),
    "eap-ig path, constant-norm": EapIg(path=True, rule="constant-norm"),
}
SIDES = ("ns", "dn")
COLUMNS = ("model", "task", "seed", "method", "direction", "edges", "kl_ns", "kl_dn", "empty_ns", "empty_dn", "seconds")
Row = dict[str, str]


def measure(args: argparse.Namespace) -> None:
    """Write what is missing of the file."""
    out = Path(args.out)
    done = {_search(row) for row in read(out)} if out.exists() else set()
    for name in args.models:
        model = gw.load_model(name)
        for task_name, seed in itertools.product(args.tasks, args.seeds):
            task = gw.task(task_name, model, examples=args.examples, test_examples=args.held_out, seed=seed)
            held_out = [Setting(model, task.test), Setting(model, task.test.swapped())]
            empty = [behaviours(setting, [model.graph.empty()])[0].kl_from_full.mean for setting in held_out]
            for method_name in args.methods:
                method = METHODS[method_name]
                directions = ("ns", "dn", "ns+dn") if method.directed else ("ns",)
                if all((name, task_name, str(seed), method_name, direction) in done for direction in directions):
                    continue
                rows = _rows(model, task, method, SIZES.get(name, OTHER_SIZES), directions, held_out)
                cell = (name, task_name, seed, method_name)
                append(out, [(*cell, *row[:4], *empty, row[4]) for row in rows])
                print(name, task_name, seed, method_name, flush=True)


def _rows(
    model: gw.Model,
    task: gw.Task,
    method: Method,
    sizes: Sequence[int],
    directions: Sequence[str],
    held_out: Sequence[Setting],
) -> list[tuple[str, int, float, float, float]]:
    """Direction, edges, KL under Ns and Dn, and CPU seconds of the search, for every circuit of a method."""
    started = time.process_time()
    by_direction = gw.discover_all(model, task.train, method, directions, sizes=sizes)  # type: ignore[arg-type]
    seconds = time.process_time() - started
    circuits = [circuit for direction in directions for circuit in by_direction[direction]]  # type: ignore[index]
    ns, dn = ([what.kl_from_full.mean for what in behaviours(setting, circuits)] for setting in held_out)
    labels = itertools.product(directions, sizes)
    return [(*label, a, b, seconds) for label, a, b in zip(labels, ns, dn, strict=True)]


def append(out: Path, rows: Sequence[Sequence[object]]) -> None:
    """Add rows to the file, whose first line names the columns."""
    new = not out.exists()
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", newline="") as stream:
        writer = csv.writer(stream)
        if new:
            writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in row])


def read(path: Path) -> list[Row]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def _search(row: Row) -> tuple[str, ...]:
    return tuple(row[name] for name in ("model", "task", "seed", "method", "direction"))


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of a Markdown table: for each search what is left of the empty circuit's KL, a column for each cell."""
    cells = list(dict.fromkeys((row["model"], row["task"]) for row in rows))
    searches = list(dict.fromkeys((row["method"], row["direction"]) for row in rows))
    headings = [f"{model.split('-')[0]} {task}" for model, task in cells]
    yield f"| method and rule | direction | {' | '.join(headings)} | mean, Ns | mean, Dn | better than plain |"
    yield f"| --- | --- |{' ---: |' * (len(cells) + 3)}"
    shares = {}
    for search in searches:
        shares[search] = {side: [_share(rows, search, cell, side) for cell in cells] for side in SIDES}
    for (method, direction), of_search in shares.items():
        plain = shares[f"{method.split()[0]} plain", direction]
        better = [a < b for side in SIDES for a, b in zip(of_search[side], plain[side], strict=True)]
        won = "" if method.endswith(" plain") else f"{sum(better)} of {len(better)}"
        means = [statistics.mean(of_search[side]) for side in SIDES]
        values = " | ".join(f"{share:.2f}" for share in (*of_search["ns"], *means))
        yield f"| {method} | {direction} | {values} | {won} |"


def _share(rows: Sequence[Row], search: tuple[str, str], cell: tuple[str, str], side: str) -> float:
    """KL over the empty circuit's: the mean over sizes and seeds."""
    return statistics.mean(
        float(row[f"kl_{side}"]) / float(row[f"empty_{side}"])
        for row in rows
        if (row["method"], row["direction"]) == search and (row["model"], row["task"]) == cell
    )


def cost(args: argparse.Namespace) -> None:
    """CPU seconds of every method, the fastest of some turns."""
    model = gw.load_model(args.models[0])
    setting = Setting(model, gw.task(args.tasks[0], model, examples=args.examples, seed=0).train)
    seconds: dict[str, list[float]] = {name: [] for name in args.methods}
    for _, name in itertools.product(range(args.turns), args.methods):
        started = time.process_time()
        gw.discover(model, setting, METHODS[name], edges=100)
        seconds[name].append(time.process_time() - started)
    for name, turns in seconds.items():
        plain = min(seconds[f"{name.split()[0]} plain"])  # which has to be among the methods
        print(f"{name}: {min(turns):.2f} s, {min(turns) / plain:.2f} of plain", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["smollm2-135m", "gemma3-270m"])
    parser.add_argument("--tasks", nargs="+", default=["ioi", "gt", "sa"])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--examples", type=int, default=32, help="pairs to search on")
    parser.add_argument("--held-out", type=int, default=64, help="pairs to measure on")
    parser.add_argument("--out", default="build/gradient-rules.csv")
    parser.add_argument("--table", type=Path, help="print the tables of this file")
    parser.add_argument("--turns", type=int, default=3, help="of --cost")
    parser.add_argument("--cost", action="store_true", help="print what methods cost on the first model and task")
    args = parser.parse_args()
    if args.table:
        print("\n".join(table(read(args.table))))
    elif args.cost:
        cost(args)
    else:
        measure(args)


if __name__ == "__main__":
    main()
