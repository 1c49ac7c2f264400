"""bench/frontier.py on the tiny model: one row for each circuit, resumed from its store, with a method of one's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gatewise as gw

ROOT = Path(__file__).parents[2]
OWN = """
from gatewise.methods import Eap


class Mine(Eap):
    name = "mine"
"""
CHOICES = ["--models", "tiny", "--tasks", "ioi", "--seeds", "0", "--sizes", "40", "120", "--examples", "8"]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "bench" / "frontier.py"), *CHOICES, "--test-examples", "6", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command += ["--store", "store", "--out", "frontier"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_one_row_for_each_circuit(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "mine.py").write_text(OWN)
    done = run(tmp_path, "--methods", "eap", "mine:Mine", "--directions", "ns", "ns+dn")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "frontier.json").read_text())["rows"]
    assert [(row["method"], row["direction"], row["edges"]) for row in rows] == [
        (method, direction, size)
        for method in ("eap", "mine:Mine")
        for direction in ("ns", "ns+dn")
        for size in (40, 120)
    ]
    model = gw.load_model("tiny")
    task = gw.task("ioi", model, examples=8, test_examples=6, seed=0)
    circuit = gw.discover(model, task, "eap", "ns+dn", edges=120)
    evaluation = gw.evaluate(model, task, circuit, random_circuits=0)
    row = rows[3]
    assert row["kl"] == pytest.approx(evaluation.faithfulness.mean)
    assert row["share_both"] == pytest.approx(evaluation.recovered_both)
    assert row["accuracy"] == evaluation.circuit.accuracy.mean
    assert row["destroyed"] == pytest.approx(evaluation.destroyed)
    shares = [*(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5), 1.0]
    sizes = [max(1, round(share * model.graph.n_edges)) for share in shares]
    circuits = gw.discover_all(model, task, "eap", ["ns+dn"], sizes=sizes)["ns+dn"]
    kept = [found.recovered_logit_diff for found in gw.evaluate(model, task, list(circuits), random_circuits=0)]
    steps = zip(shares, shares[1:], kept, kept[1:], strict=False)
    assert row["cpr"] == pytest.approx(sum((b - a) * (u + v) / 2 for a, b, u, v in steps))
    assert row["cost_f"] > 0
    assert "| eap ns+dn | 120 |" in (tmp_path / "frontier.md").read_text()
    assert (tmp_path / "frontier.svg").stat().st_size > 1000

    again = run(tmp_path, "--methods", "eap", "eap-ig", "--collect")
    assert "4 rows of 2 cells, 2 missing" in again.stdout, again.stdout + again.stderr
    assert json.loads((tmp_path / "frontier.json").read_text())["rows"] == rows[:4]
