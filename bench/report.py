"""How large a report is and how fluid: a made-up circuit of 5,000 edges in SmolLM2's graph, drawn by a real browser.

    python bench/report.py [--edges 5000] [--out report.html]

Frames are measured in chromium without a GPU: how far frames lie apart, and, which other work on the machine does not
change, the CPU time of all of the browser's processes per frame.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import psutil
import torch

import gatewise as gw
from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.circuits.selection import select_edges
from gatewise.gates import label_gates
from gatewise.gates.testing.gate_test import GateTest
from gatewise.gates.testing.search import GateTests
from gatewise.report.data import report_data
from gatewise.report.investigation import SEARCHES, Report, make_report
from gatewise.report.node_behaviour import ShownNodes
from gatewise.report.page import write_page
from gatewise.report.trust import strongest_nodes

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def small_investigation() -> Report:
    """A real one, of the model `tiny`."""
    model = gw.load_model("tiny")
    return make_report(model, gw.task("ioi", model, examples=4), edges=64, random_circuits=1)


def synthetic(edges: int, tables: int = 1_000) -> dict[str, Any]:
    """The data of a report on `edges` edges per direction: scores drawn at random, the rest as of a small run."""
    found = small_investigation()
    graph = Graph.transformer(30, 9, 576)
    generator = torch.Generator().manual_seed(0)
    shared, *own = torch.randn(4, graph.n_edges, generator=generator).exp()
    sizes = tuple(max(1, edges >> (len(found.sizes) - 1 - i)) for i in range(len(found.sizes)))
    searches = {}
    for direction, scores in zip(SEARCHES, own, strict=True):
        scores = scores + 3 * shared
        searches[direction] = tuple(
            Circuit(
                graph, select_edges(graph, scores, size), scores, {**found.gates.ns.provenance, "direction": direction}
            )
            for size in sizes
        )
    gates = label_gates(searches["ns"][-1], searches["dn"][-1], joint=searches["ns+dn"][-1])
    made = dataclasses.replace(
        found,
        gates=gates,
        sizes=sizes,
        searches=searches,
        calibration=None,
        tested={},
        tables=_tables(gates, tables),
        nodes=_nodes(found, gates),
        interactions=_interactions(gates),
    )
    return report_data(made)


def _tables(gates: gw.Gates, count: int) -> tuple[GateTest, ...]:
    by_port: dict[str, list[str]] = {}
    for edge in gates.sound:
        by_port.setdefault(edge.partition("->")[2], []).append(edge)
    generator = torch.Generator().manual_seed(0)
    made: list[GateTest] = []
    for port, edges in by_port.items():
        for first, second in zip(edges[:-1:2], edges[1::2], strict=False):
            worth, total = torch.rand(8, 4, generator=generator).double(), torch.ones(4).double()
            groups = {edge.partition("->")[0]: (edge,) for edge in (first, second)}
            made.append(GateTest(port.partition("<")[0], groups, "clean", worth, total))
    return tuple(made[:count])


def _nodes(found: Report, gates: gw.Gates, count: int = 100) -> ShownNodes:
    """What nodes of the small run do, as if it were these nodes' doing."""
    assert found.nodes is not None
    doing = [on for on in found.nodes.of.values() if on[0].looks]
    names = strongest_nodes(gates, count)
    worth = {name: 1 / (place + 1) for place, name in enumerate(names)}
    return ShownNodes(found.nodes.prompts, worth, {name: doing[i % len(doing)] for i, name in enumerate(names)})


def _interactions(gates: gw.Gates, count: int = 40) -> GateTests:
    """Whole ports of heads as groups, with tables drawn at random."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for node in [name for name in gates.graph.senders if name.startswith("a")][-count:]:
        groups = {
            port.upper(): tuple(edge for edge in gates.graph.edges if edge.endswith(f"->{node}<{port}>"))
            for port in "qkv"
        }
        table = torch.rand(16, 32, generator=generator, dtype=torch.float64)
        table[0] = 0
        made.append(GateTest(node, groups, "corrupted", table, torch.ones(32, dtype=torch.float64)))
    return GateTests(tuple(made), (True,) * len(made), len(made))


_PREPARE = """() => {
  const canvas = document.getElementById("over"), frame = canvas.getBoundingClientRect();
  const [wide, high] = [frame.width - 160, frame.height - 120], score = document.getElementById("score");
  const fire = (type, x, y) => canvas.dispatchEvent(new PointerEvent(type, {
    pointerId: 1, clientX: frame.left + x, clientY: frame.top + y, bubbles: true, pointerType: "mouse" }));
  canvas.setPointerCapture = () => {};
  window.rest = () => new Promise((done) => setTimeout(done, 1500));
  window.actions = {
    nothing: () => {},
    hover: (i) => fire("pointermove", 80 + 7 * i % wide, 60 + 11 * i % high),
    pan: (i) => fire(i ? "pointermove" : "pointerdown", 300 + 80 * Math.sin(i / 9), 300 + 60 * Math.cos(i / 7)),
    filter: (i) => { score.value = String(i % 40); score.dispatchEvent(new Event("input")); },
  };
}"""
_MEASURE = """async ([action, frames]) => {
  const next = () => new Promise((done) => requestAnimationFrame(done));
  const apart = [];
  await next();
  let before = performance.now();
  for (let i = 0; i < frames; i++) {
    window.actions[action](i);
    await next();
    apart.push(performance.now() - before);
    before = performance.now();
  }
  return apart;
}"""


def measure(path: Path, frames: int = 120) -> dict[str, dict[str, float]]:
    """Milliseconds per frame while hovering, panning and filtering: CPU time, and between frames."""
    from playwright.sync_api import sync_playwright

    found = {}
    with sync_playwright() as play:
        mine = {child.pid for child in psutil.Process().children(recursive=True)}
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(path.as_uri() + "#edges=all")
        page.locator("#plot").scroll_into_view_if_needed()
        page.evaluate(_PREPARE)
        page.locator("#zoom-in").click()  # so that there is something to pan
        for action in ("nothing", "hover", "pan", "filter"):
            page.evaluate("rest()")
            before = _cpu_seconds(mine)
            apart = sorted(page.evaluate(_MEASURE, [action, frames]))
            spent = 1_000 * (_cpu_seconds(mine) - before) / frames
            found[action] = {
                "processor": round(spent, 1),
                "apart_median": round(statistics.median(apart), 1),
                "apart_95": round(apart[int(0.95 * (frames - 1))], 1),
            }
        browser.close()
    return found


def _cpu_seconds(without: set[int]) -> float:
    """Of the browser: of all our children but those that were there before it."""
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        if child.pid not in without:
            times = child.cpu_times()
            total += times.user + times.system
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--edges", type=int, default=5_000)
    parser.add_argument("--out", type=Path, help="keep the report here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = (arguments.out or Path(folder) / "report.html").resolve()
        data = synthetic(arguments.edges)
        write_page(path, data)
        size, count = path.stat().st_size / 1e6, len(data["edges"]["sender"])
        print(f"{arguments.edges:,} edges per direction, {count:,} in all: {size:.2f} MB")
        print(json.dumps(measure(path), indent=2))


if __name__ == "__main__":
    main()
