"""What docs/reconcile.md says about real models: each of IOI, GT and SA removed with the other two kept.

    python scripts/reconcile_findings.py --model smollm2-135m --folder reconciled

Gates are EAP's, split and tested (on other pairs than they are looked for); what is done is kept in the folder and not
done again. All measures are on pairs that neither has seen. `--table` prints the tables of all that is in the folder.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gatewise as gw
from gatewise.logic.trials import other_removals, try_removals
from gatewise.store import Store

TASKS = ("ioi", "gt", "sa")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--edges", type=int, default=400)
    parser.add_argument("--examples", type=int, default=16)
    parser.add_argument("--test-examples", type=int, default=64)
    parser.add_argument("--share", type=float, default=0.9)
    parser.add_argument("--by", nargs="+", default=["split", "tested"])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print("\n".join(table(json.loads(path.read_text())) for path in sorted(options.folder.glob("*.json"))))
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
            answer = gw.reconcile(keep, remove, by=by, share=options.share)
            others = other_removals(keep, remove, None if answer.removal is None else len(answer.removal))
            trials = try_removals(model, {name: task.test for name, task in tasks.items()}, answer, others)
            content = {"model": options.model, "by": by, "lost": lost, "edges": options.edges, **answer.to_json()}
            path.write_text(json.dumps({**content, "trials": [one.to_json() for one in trials]}, indent=2))
            print(table(json.loads(path.read_text())), flush=True)


def found_gates(model: gw.Model, task: gw.Task, by: str, options: argparse.Namespace) -> gw.Gates:
    """Gates of a task, out of the folder if they are there."""
    path = options.folder / f"{options.model}-{by}-{task.name}-{options.edges}.gates"
    if path.exists():
        return gw.Gates.load(path)
    store = Store(str(options.folder / "store"))
    search, test = task.train[: options.examples], task.train[options.examples :]
    gates = gw.find_gates(model, search, "eap", edges=options.edges, joint=False, store=store)
    if by == "tested":
        gates = gates.with_tested(gw.find_interactions(model, search, test=test, of=gates.sound, confirm=False))
    gates.save(path)
    return gates


def table(found: dict[str, Any]) -> str:
    """One case as a table in Markdown: a row for each removal, and each task's accuracy, share of its margin and KL."""
    names = [*found["remove"], *found["keep"]]
    head = [f"{name} {'gone' if name in found['remove'] else 'kept'}" for name in names]
    lines = [f"\n{found['model']}, {found['lost']} removed by {found['by']} labels, share {found['share']}: "]
    if found["possible"]:
        proven = "smallest" if found["smallest"] else "best in the time"
        levels = ", ".join(f"{name} {level:.2f}" for name, level in found["levels"].items())
        lines[0] += f"{len(found['removal'])} edges ({proven}, {found['seconds']:.1f} s): {', '.join(found['removal'])}"
        lines[0] += f"; logic says {levels}."
    else:
        lines[0] += "impossible: " + "; ".join(found["core"])
    lines += ["", "| removed | edges | " + " | ".join(head) + " |", "| --- | ---: |" + " ---: |" * len(names)]
    by_removal: dict[str, dict[str, dict[str, Any]]] = {}
    for trial in found["trials"]:
        by_removal.setdefault(trial["removal"], {})[trial["task"]] = trial
    for removal, by_task in by_removal.items():
        cells = [
            f"{one['accuracy']:.2f}, {one['share']:.2f}, {one['kl']:.2f}" for one in map(by_task.__getitem__, names)
        ]
        lines.append(f"| {removal} | {next(iter(by_task.values()))['edges']} | " + " | ".join(cells) + " |")
    wrong = [f"{one['task']}: {one['wrong']}" for one in found["trials"] if one["wrong"]]
    return "\n".join([*lines, "", *([f"Wrong: {'; '.join(wrong)}."] if wrong else [])])


if __name__ == "__main__":
    main()
