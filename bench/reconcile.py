"""How much CPU time `reconcile` takes: one task kept and one removed, for circuits of growing size.

    python bench/reconcile.py

The circuits are EAP's on 8 pairs of smollm2-135m, by labels of the split. Prints a table for docs/reconcile.md.
"""

from __future__ import annotations

import time
from itertools import permutations

import gatewise as gw
from gatewise.gates.reconciliation import reconcile

TASKS = ("ioi", "gt", "sa")
EDGES = (670, 1_000, 1_330, 2_000)  # of each direction


def main() -> None:
    model = gw.load_model("smollm2-135m")
    tasks = {name: gw.task(name, model, examples=8).train for name in TASKS}
    cases = list(permutations(TASKS, 2))
    print("| edges of a circuit |", " | ".join(f"keep {kept}, remove {lost}" for kept, lost in cases), "|")
    print("| --- |", " | ".join("---:" for _ in cases), "|")
    for edges in EDGES:
        gates = {name: gw.find_gates(model, one, "eap", edges=edges, joint=False) for name, one in tasks.items()}
        cells = []
        for kept, lost in cases:
            started = time.process_time()
            answer = reconcile([gates[kept]], [gates[lost]])
            seconds = time.process_time() - started
            proven = "" if answer.smallest else f", at least {answer.at_least}"
            removed = "impossible" if answer.removal is None else f"{len(answer.removal)}{proven}"
            cells.append(f"{seconds:.1f} ({removed})")
        sizes = sorted(len(one.sound) for one in gates.values())
        print(f"| {sizes[0]:,} to {sizes[-1]:,} each |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
