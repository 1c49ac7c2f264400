"""The report in a real browser: what people point at, click, filter, search, and save."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gatewise.circuits.circuit import Circuit
from gatewise.evaluation.judgement import faithful
from gatewise.report.investigation import Investigation

Open = Callable[..., Any]  # data -> page
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \"'`&amp; \u2028\u2029 <!-- {{script}} ${x}"


def shown(page: Any) -> int:
    """The number of edges that the page says it shows."""
    text = page.locator("#shown").inner_text()
    return int(re.match(r"([\d,]+) of the", text)[1].replace(",", ""))  # type: ignore[index]


def names(page: Any) -> set[str]:
    """The edges that are drawn."""
    return set(page.evaluate("gatewiseReport.graph.order().map((edge) => edge.name)"))


def spot(page: Any, target: dict[str, int]) -> tuple[float, float]:
    """Where a node or an edge is on the screen."""
    page.locator("#plot").scroll_into_view_if_needed()
    x, y = page.evaluate("(target) => gatewiseReport.graph.screen(target)", target)
    frame = page.locator("#over").bounding_box()
    return frame["x"] + x, frame["y"] + y


def node_id(page: Any, name: str) -> int:
    return int(page.evaluate("(name) => gatewiseReport.model.byName.get(name).id", name))


def set_range(page: Any, element: str, value: int) -> None:
    page.locator(element).evaluate("(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }", str(value))


def test_says_what_was_found(open_page: Open, data: dict[str, Any], found: Investigation) -> None:
    page = open_page(data)
    assert page.locator("h1").inner_text() == "ioi in tiny"
    assert page.locator(".fact").count() == 3
    assert page.locator("#trust li").count() == len(data["trust"])
    assert "gatewise run tiny {}" in page.locator("#command").inner_text()
    assert names(page) == set(found.gates.sound)
    assert shown(page) == len(found.gates.sound)
    for word in ("AND", "OR", "ADDER"):
        assert f"{word}:" in page.locator("#legend").inner_text()


def test_filters_by_type_and_port(open_page: Open, data: dict[str, Any], found: Investigation) -> None:
    page = open_page(data)
    page.locator("#filters summary").click()
    page.locator("#types input[value=ADDER]").uncheck()
    assert names(page) == set(found.gates.by_type["AND"] | found.gates.by_type["OR"])
    page.locator("#types input[value=AND]").uncheck()
    assert names(page) == set(found.gates.by_type["OR"])
    page.locator("#reset").click()
    assert names(page) == set(found.gates.sound)
    page.locator("#ports input[value=q]").uncheck()
    page.locator("#ports input[value=mlp]").uncheck()
    kept = {e for e in found.gates.sound if not e.endswith("<q>") and not re.search(r"->m\d+$", e)}
    assert names(page) == kept
    assert kept < set(found.gates.sound)


def test_filters_by_score_layer_and_name(open_page: Open, data: dict[str, Any], found: Investigation) -> None:
    page = open_page(data)
    page.locator("#filters summary").click()
    everything = names(page)
    set_range(page, "#score", 50)
    strong = names(page)
    assert strong < everything
    assert strong
    page.locator("#reset").click()
    page.locator("#layer-from").select_option("2")
    page.locator("#layer-to").select_option("3")
    inside = {e for e in everything if re.match(r"[am][23]\b.*->[am][23]\b", e)}
    assert names(page) == inside
    page.locator("#reset").click()
    page.locator("#name").fill("m0, a1.h5")
    assert names(page) == {e for e in everything if "m0" in e or "a1.h5" in e}
    page.locator("#name").fill("no such node")
    assert shown(page) == 0


def test_slider_and_choice_of_circuit(open_page: Open, data: dict[str, Any], found: Investigation) -> None:
    page = open_page(data)
    slider = page.locator("#size")
    slider.focus()
    page.keyboard.press("Home")
    assert names(page) == set(found.circuits(0)["ns|dn"])
    page.keyboard.press("ArrowRight")
    assert names(page) == set(found.circuits(1)["ns|dn"])
    assert page.locator("#size-value").inner_text() == str(found.sizes[1])
    for name in ("ns", "dn", "ns+dn"):
        page.locator(f"#which input[value='{name}']").check(force=True)
        assert names(page) == set(found.circuits(1)[name])
        expected = faithful(found.curves[name][1]).answer
        assert f"Faithful: {expected}." in page.locator("#measured").inner_text()


def test_hover_shows_scores_gate_and_truth_table(open_page: Open, data: dict[str, Any], found: Investigation) -> None:
    page = open_page(data)
    tip = page.locator("#tip")
    page.mouse.move(*spot(page, {"node": node_id(page, "logits")}))
    tip.wait_for(state="visible")
    assert tip.locator("b").first.inner_text() == "logits"
    into = [edge for edge in found.gates.sound if edge.endswith("->logits")]
    assert f"in {len(into)} " in tip.inner_text()
    tested = page.evaluate(
        "gatewiseReport.graph.order().filter((e) => gatewiseReport.model.tablesOf[e.id].length).at(-1).id"
    )
    page.mouse.move(5, 5)
    page.mouse.move(*spot(page, {"edge": tested}))
    tip.wait_for(state="visible")
    page.locator("#tip b", has_text="->").wait_for()
    name = tip.locator("b").first.inner_text()
    assert found.gates.label(name) in tip.inner_text()
    assert "effect at the receiver" in tip.inner_text()
    score = float(found.gates.ns.scores[found.graph.index(name)])  # type: ignore[index]
    line = re.search(r"^ns\t(\S+)", tip.inner_text().replace("\u2212", "-"), flags=re.MULTILINE)
    assert float(line[1]) == pytest.approx(score, rel=0.006)  # type: ignore[index]
    page.mouse.move(5, 5)
    tip.wait_for(state="hidden")


def test_click_shows_a_gate_alone(open_page: Open, data: dict[str, Any], found: Investigation) -> None:
    page = open_page(data)
    page.mouse.click(*spot(page, {"node": node_id(page, "m0")}))
    page.mouse.move(5, 5)
    assert page.locator("#gate-title").inner_text() == "Gates of m0"
    lit = set(page.evaluate("gatewiseReport.graph.lit().map((edge) => edge.name)"))
    assert lit == {edge for edge in found.gates.sound if edge.endswith("->m0")}
    for gate in found.gates:
        if gate.receiver == "m0":
            for sender in gate.senders:
                assert sender in page.locator("#panel").inner_text()
    assert page.locator("#panel .truth").count() > 0
    page.keyboard.press("Escape")
    assert page.locator("#panel h3").first.inner_text() == "Strongest receivers"
    assert page.evaluate("gatewiseReport.graph.lit()") is None


def test_gates_without_a_mouse(open_page: Open, data: dict[str, Any]) -> None:
    page = open_page(data)
    first = page.locator("#panel .list button").first
    first.focus()
    name = first.get_attribute("data-node")
    page.keyboard.press("Enter")
    assert page.locator("#gate-title").inner_text() == f"Gates of {name}"
    unnamed = page.evaluate(
        """[...document.querySelectorAll("button, input, select, canvas[tabindex]")].filter((e) =>
        !(e.getAttribute("aria-label") || e.textContent.trim() || (e.labels && e.labels.length))).length"""
    )
    assert unnamed == 0


def test_search(open_page: Open, data: dict[str, Any]) -> None:
    page = open_page(data)
    page.locator("#search").fill("m0")
    assert page.locator("#found li").first.inner_text().startswith("m0")
    page.keyboard.press("Enter")
    assert page.locator("#gate-title").inner_text() == "Gates of m0"
    page.locator("#search").fill("m0->logits")
    page.keyboard.press("Enter")
    assert page.locator("#panel h3").first.inner_text() == "m0->logits"
    page.locator("#search").fill("zzz")
    assert "nothing shown" in page.locator("#found").inner_text()


def test_edges_are_drawn_in_the_colours_of_their_types(open_page: Open, data: dict[str, Any]) -> None:
    page = open_page(data)
    page.locator("#filters summary").click()
    palette = {"AND": (0, 114, 178), "OR": (0, 158, 115), "ADDER": (213, 94, 0)}
    mean_colour = """() => {
      const base = document.getElementById("base"), copy = document.createElement("canvas"), sum = [0, 0, 0, 0];
      [copy.width, copy.height] = [base.width, base.height];
      const context = copy.getContext("2d", { willReadFrequently: true });
      context.drawImage(base, 0, 0);
      const { data } = context.getImageData(0, 0, copy.width, copy.height);
      for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 30) {
        for (let j = 0; j < 3; j++) sum[j] += data[i + j];
        sum[3] += 1;
      }
      return sum;
    }"""
    for kind, colour in palette.items():
        for other in palette:
            page.locator(f"#types input[value={other}]").set_checked(other == kind)
        page.wait_for_timeout(100)
        *sums, count = page.evaluate(mean_colour)
        assert count > 100
        assert [total / count for total in sums] == pytest.approx(colour, abs=12)


def test_five_thousand_edges(open_page: Open, tmp_path: Path) -> None:
    """Small enough to mail, drawn to the last edge, found under the pointer."""
    spec = importlib.util.spec_from_file_location("bench_report", Path(__file__).parents[2] / "bench/report.py")
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    large = bench.synthetic(5_000)
    page = open_page(large)
    assert (tmp_path / "report.html").stat().st_size < 5_000_000
    assert shown(page) > 5_000
    for _ in range(100):
        if page.evaluate("gatewiseReport.graph.complete()"):
            break
        page.wait_for_timeout(100)
    assert page.evaluate("gatewiseReport.graph.complete()")
    page.mouse.move(*spot(page, {"node": node_id(page, "m15")}))
    page.locator("#tip b", has_text="m15").wait_for()
    set_range(page, "#score", 60)
    assert 0 < shown(page) < 5_000


def test_dark_and_light(open_page: Open, data: dict[str, Any]) -> None:
    def paper() -> str:
        return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))

    page = open_page(data, scheme="dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    dark = paper()
    page.locator("#theme").click()
    light = paper()
    assert dark != light
    page = open_page(data)
    assert paper() == light
    page.emulate_media(color_scheme="dark")
    page.locator("html[data-theme=dark]").wait_for()
    assert paper() == dark


@pytest.mark.parametrize("width", [390, 800])
def test_narrow_screens_need_no_sideways_scrolling(open_page: Open, data: dict[str, Any], width: int) -> None:
    page = open_page(data, width=width, height=844)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("gatewiseReport.graph.laid().upwards") is (width < 600)


def test_text_stays_text(open_page: Open, data: dict[str, Any]) -> None:
    data["title"] = data["model"] = data["command"] = HOSTILE
    data["provenance"]["task"] = HOSTILE
    data["trust"][0]["text"] = data["next"][0]["command"] = HOSTILE
    for example in data["examples"]:
        example["clean"] = example["corrupted"] = HOSTILE
        example["right"] = [HOSTILE]
        for answer in example["answers"].values():
            answer["top"][0][0] = HOSTILE
    page = open_page(data)
    page.wait_for_timeout(200)
    assert page.locator("h1").evaluate("(e) => e.textContent") == HOSTILE
    assert page.locator(".prompt").first.evaluate("(e) => e.textContent") == HOSTILE
    assert page.locator("script").count() == 2  # the data and the program
    assert page.locator("img").count() == 0
    assert HOSTILE in page.locator("#command code").evaluate("(e) => e.textContent")


def test_saves_the_circuit_and_the_view(
    open_page: Open, data: dict[str, Any], found: Investigation, tmp_path: Path
) -> None:
    page = open_page(data)
    with page.expect_download() as waiting:
        page.locator("#save-json").click()
    waiting.value.save_as(tmp_path / "circuit.json")
    loaded = Circuit.load(tmp_path / "circuit.json")
    assert loaded == found.gates.sound
    listed = json.loads((tmp_path / "circuit.json").read_text())["edges"]
    assert list(listed) == list(found.graph.edges)
    with page.expect_download() as waiting:
        page.locator("#save-svg").click()
    waiting.value.save_as(tmp_path / "view.svg")
    root = ElementTree.parse(tmp_path / "view.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f".//{space}path")) == len(found.gates.sound)
    page.locator("#filters summary").click()
    page.locator("#types input[value=ADDER]").uncheck()
    with page.expect_download() as waiting:
        page.locator("#save-json").click()
    waiting.value.save_as(tmp_path / "part.json")
    assert Circuit.load(tmp_path / "part.json") == found.gates.by_type["AND"] | found.gates.by_type["OR"]


def test_pan_and_zoom(open_page: Open, data: dict[str, Any]) -> None:
    page = open_page(data)
    page.locator("#zoom-in").click()
    page.wait_for_timeout(250)
    frame = page.locator("#over").bounding_box()
    middle = (frame["x"] + frame["width"] / 2, frame["y"] + frame["height"] / 2)
    used = "[...new Set(gatewiseReport.graph.order().flatMap((edge) => [edge.from.name, edge.to.name]))]"
    name = min(page.evaluate(used), key=lambda one: math.dist(spot(page, {"node": node_id(page, one)}), middle))
    x, y = spot(page, {"node": node_id(page, name)})
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + 60, middle[1] - 30, steps=4)
    page.mouse.up()
    page.wait_for_timeout(250)
    nx, ny = spot(page, {"node": node_id(page, name)})
    assert (round(nx - x), round(ny - y)) == (60, -30)
    page.mouse.move(nx, ny)  # what is under the pointer is found where it was moved to
    page.locator("#tip").wait_for(state="visible")
    assert page.locator("#tip b").first.inner_text() == name
    page.locator("#fit").click()
    assert page.evaluate("gatewiseReport.graph.view().scale") == 1
