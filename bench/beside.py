"""All operations, ours and AutoCircuit's, in one table: F, and how many times fewer. Reads what the others wrote.

    python bench/beside.py --peers bench/results/peers.json --acdc bench/results/acdc.json

EAP and a circuit are measured here, on the 2-layer model and the pairs of peers.py, by its clock and on its threads;
ACDC's figures are those of acdc.py, which has put the peer's beside them.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see engine.py

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import PLAIN, Job, environment, time_jobs
from rich.console import Console
from rich.table import Table
from shapes import lively_gpt2, random_prompts

from gatewise.engine.running import run_circuit
from gatewise.methods import discover, score_edges
from gatewise.models.transformer import adapt
from gatewise.tasks.pairs import Pairs

TOKENS, CIRCUIT_EDGES = 15, 30  # as in peers.py, which cannot be imported here


def ours(examples: int, clock: str, repeats: int) -> dict[str, float]:
    """F of the operations that peers.py measures, by their names there."""
    model = adapt(lively_gpt2(2), name="2 layers")
    clean, corrupted = random_prompts(model.vocabulary_size, examples, TOKENS)
    pairs = Pairs.from_tokens(clean, corrupted, correct=[0] * examples, incorrect=[1] * examples)
    circuit = discover(model, pairs, edges=CIRCUIT_EDGES)

    @torch.no_grad()
    def plain() -> object:
        return model.hf(pairs.clean)

    jobs = {
        PLAIN: Job(lambda: plain),
        "EAP, ns": Job(lambda: partial(score_edges, model, pairs, "eap", "ns")),
        "a circuit, all of it": Job(lambda: partial(run_circuit, model, pairs, circuit)),
    }
    return {row.job: row.f_median for row in time_jobs(jobs, repeats, None, clock)}


def rows_of(peers: dict[str, Any], acdc: dict[str, Any], repeats: int) -> list[tuple[str, float, float, bool]]:
    """What, our F, theirs, whether theirs is extrapolated."""
    theirs = peers.get("operations", {})
    found = []
    if theirs:
        own = ours(next(iter(theirs.values()))["pairs"], peers["environment"]["clock"], repeats)
        found = [(f"{name}, 2 layers", own[name], one["f"], False) for name, one in theirs.items()]
    for case in acdc.get("cases", []):
        if "peer_f_per_edge" in case:
            theirs_in_all = case["peer_f_per_edge"] * case["edges"]
            found.append((f"ACDC, {case['case']}", case["f"], theirs_in_all, case["peer_extrapolated"]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", type=Path, required=True, help="what peers.py wrote")
    parser.add_argument("--acdc", type=Path, help="what acdc.py wrote with --peers and --out")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    peers = json.loads(options.peers.read_text())
    acdc = json.loads(options.acdc.read_text()) if options.acdc and options.acdc.exists() else {}
    torch.set_num_threads(peers["environment"]["threads"])
    table = Table("operation", "gatewise, F", "AutoCircuit, F", "times fewer", title="Beside AutoCircuit")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, own, other, extrapolated in rows_of(peers, acdc, options.repeats):
        mark = "~" if extrapolated else ""
        table.add_row(name, f"{own:,.2f}", f"{mark}{other:,.1f}", f"{mark}{other / own:,.1f}")
    console = Console(width=110)
    about = environment(peers["environment"]["clock"])
    console.print(", ".join(f"{key} {value}" for key, value in about.items()), highlight=False)
    console.print(table)
    console.print("F: a plain forward of the same batch, in each one's own process. ~: extrapolated from a sample.")


if __name__ == "__main__":
    main()
