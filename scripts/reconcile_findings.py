"""What docs/reconcile.md says about real models: each of IOI, GT and SA removed with the other two kept.

    python scripts/reconcile_findings.py --model smollm2-135m --folder reconciled

Gates are EAP's: by labels of the split; tested, on other pairs than they are looked for; or `sums`, every receiver an
ADDER, as a control. What is done is kept in the folder and not done again. All measures are on pairs that no search or
test has seen. `--table` prints the tables of all that is in the folder.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gatewise as gw
from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.gates import label_gates
from gatewise.gates.reconciliation import other_removals, reconcile, try_removals
from gatewise.store import Store

TASKS = ("ioi", "gt", "sa")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--edges", type=int, default=400)
    parser.add_argument("--examples", type=int, default=16)
    parser.add_argument("--test-examples", type=int, default=32)
    parser.add_argument("--most", type=int, default=10, help="receivers that are tested for each grouping")
    parser.add_argument("--share", type=float, default=0.9)
    parser.add_argument("--by", nargs="+", default=["split", "tested", "sums"])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(tables(options.folder))
        return
    model = gw.load_model(options.model)
    sizes = {"examples": options.examples + options.test_examples, "test_examples": options.test_examples}
    tasks = {name: gw.task(name, model, **sizes) for name in TASKS}
    for by in options.by:
        gates = {name: found_gates(model, task, by, options) for name, task in tasks.items()}
        for lost in TASKS:
            path = options.folder / f"{options.model}-{by}-{options.share}-{lost}.json"
            if path.exists():
                continue
            keep, remove = [gates[name] for name in TASKS if name != lost], [gates[lost]]
            answer = reconcile(keep, remove, by="tested" if by == "tested" else "split", share=options.share)
            others = other_removals(keep, remove, None if answer.removal is None else len(answer.removal))
            trials = try_removals(model, {name: task.test for name, task in tasks.items()}, answer, others)
            content = {"model": options.model, "by": by, "lost": lost, "edges": options.edges, **answer.to_json()}
            path.write_text(json.dumps({**content, "trials": [one.to_json() for one in trials]}, indent=2))
            print(note(json.loads(path.read_text())), flush=True)


def found_gates(model: gw.Model, task: gw.Task, by: str, options: argparse.Namespace) -> gw.Gates:
    """Gates of a task, out of the folder if they are there."""
    path = options.folder / f"{options.model}-{by}-{task.name}-{options.edges}.gates"
    if path.exists():
        return gw.Gates.load(path)
    store = Store(str(options.folder / "store"))
    search, test = task.train[: options.examples], task.train[options.examples :]
    gates = gw.find_gates(model, search, "eap", edges=options.edges, joint=False, compute=Compute(store=store))
    if by == "tested":
        gates = gates.with_tested(
            gw.test_gates(model, search, test=test, of=gates.sound, most=options.most, confirm=False)
        )
    if by == "sums":
        ns, dn = (Circuit(model.graph, gates.sound.mask, one.scores, one.provenance) for one in (gates.ns, gates.dn))
        gates = label_gates(ns, dn)
    gates.save(path)
    return gates


def tables(folder: Path) -> str:
    """All that is in the folder in Markdown: a table for each model and task that is removed."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    cases = sorted({(one["model"], TASKS.index(one["lost"])) for one in found})
    chosen = [[one for one in found if (one["model"], TASKS.index(one["lost"])) == case] for case in cases]
    return "\n\n".join(map(table, chosen))


def table(found: list[dict[str, Any]]) -> str:
    """One removed task: each task's accuracy, share of its logit difference and KL after every removal; what was
    wrong."""
    names = [*found[0]["remove"], *found[0]["keep"]]
    lines = [f"**{found[0]['model']} without {found[0]['lost']}**", ""]
    lines += [f"| removed | edges | {' | '.join(names)} |", "| --- | ---: |" + " ---: |" * len(names)]
    rows, notes = dict[str, str](), []
    for one in found:
        by_removal: dict[str, dict[str, dict[str, Any]]] = {}
        for trial in one["trials"]:
            name = trial["removal"] + (f", {one['by']}" if trial["removal"] == "reconcile" else "")
            by_removal.setdefault(name, {})[trial["task"]] = trial
        for name, by_task in by_removal.items():
            cells = [
                f"{task['accuracy']:.2f} / {task['share']:.2f} / {task['kl']:.2f}" for task in map(by_task.get, names)
            ]
            rows.setdefault(name, f"| {name} | {by_task[names[0]]['edges']} | {' | '.join(cells)} |")
        notes.append(note(one))
    order = [
        "nothing",
        "whole circuit",
        "set difference",
        "gate by gate",
        "random, of the model",
        "random, of the circuit",
    ]
    return "\n".join([*lines, *(rows.pop(name) for name in order if name in rows), *rows.values(), "", *notes])


def note(one: dict[str, Any]) -> str:
    """What logic said, and which gates misled it."""
    if not one["possible"]:
        return f"- {one['by']}: impossible, because of {'; '.join(one['core'])}."
    proven = "a smallest removal" if one["smallest"] else f"the best in the time, at least {one['at_least']} are needed"
    levels = ", ".join(f"{name} {level:.2f}" for name, level in one["levels"].items())
    wrong = [f"Wrong: {trial['misleading_gate']}." for trial in one["trials"] if trial["misleading_gate"]]
    edges = ", ".join(f"`{edge}`" for edge in one["removal"])
    return f"- {one['by']}: {edges} ({proven}, {one['seconds']:.1f} s). Logic says {levels}. {' '.join(wrong)}"


if __name__ == "__main__":
    main()
