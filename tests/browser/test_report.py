"""The report in a real browser: what people point at, click, filter, search, and save."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

import gatewise as gw
from gatewise.circuits.circuit import Circuit
from gatewise.evaluation.verdicts import faithful
from gatewise.gate_types import FOUND_COLOURS
from gatewise.report import Report, make_report
from gatewise.report.trust import edge_strength

Open = Callable[..., Any]  # data -> page
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \"'`&amp; \u2028\u2029 <!-- {{script}} ${x}"


def shown(page: Any) -> int:
    """The number of edges that the page says it shows."""
    text = page.locator("#shown").inner_text()
    return int(re.match(r"(?:The|All) ([\d,]+) ", text)[1].replace(",", ""))  # type: ignore[index]


def names(page: Any) -> set[str]:
    """The edges that are drawn."""
    return set(page.evaluate("gatewiseReport.graph.order().map((edge) => edge.name)"))


def spot(page: Any, target: dict[str, int]) -> tuple[float, float]:
    """Where a node or an edge is on the screen."""
    page.locator("#plot").scroll_into_view_if_needed()
    x, y = page.evaluate("(target) => gatewiseReport.graph.screen(target)", target)
    frame = page.locator("#over").bounding_box()
    return frame["x"] + x, frame["y"] + y


def wait(page: Any, condition: str) -> None:
    """Until it holds; the page's policy forbids Playwright's own way of waiting."""
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(condition)


def node_id(page: Any, name: str) -> int:
    return int(page.evaluate("(name) => gatewiseReport.model.byName.get(name).id", name))


def set_range(page: Any, element: str, value: int) -> None:
    page.locator(element).evaluate("(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }", str(value))


def test_says_what_was_found(open_page: Open, data: dict[str, Any], found: Report) -> None:
    page = open_page(data)
    assert page.locator("h1").inner_text() == "ioi in tiny"
    assert page.locator(".fact").count() == 3
    assert page.locator("#trust li").count() == len(data["trust"])
    assert "gatewise run tiny {}" in page.locator("#command").inner_text()
    assert names(page) == set(found.gates.sound)
    assert shown(page) == len(found.gates.sound)
    for words in ("noising only", "denoising only", "both directions"):
        assert f"{words}:" in page.locator("#legend").inner_text()


def test_filters_by_who_found_an_edge_and_by_port(open_page: Open, data: dict[str, Any], found: Report) -> None:
    page = open_page(data)
    page.locator("#filters summary").click()
    page.locator("#kinds input[value=both]").uncheck()
    assert names(page) == set(found.gates.by_type["AND"] | found.gates.by_type["OR"])
    page.locator("#kinds input[value=ns]").uncheck()
    assert names(page) == set(found.gates.by_type["OR"])
    page.locator("#reset").click()
    assert names(page) == set(found.gates.sound)
    page.locator("#ports input[value=q]").uncheck()
    page.locator("#ports input[value=mlp]").uncheck()
    kept = {e for e in found.gates.sound if not e.endswith("<q>") and not re.search(r"->m\d+$", e)}
    assert names(page) == kept
    assert kept < set(found.gates.sound)


def test_filters_by_score_layer_and_name(open_page: Open, data: dict[str, Any], found: Report) -> None:
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


def test_slider_and_choice_of_circuit(open_page: Open, data: dict[str, Any], found: Report) -> None:
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
        expected = round(100 * found.curves[name][1].recovered_logit_diff)
        measured = page.locator("#measured").inner_text()
        assert f"Faithful: {faithful(found.curves[name][1]).answer}; it keeps {expected} % (" in measured
        title = {"ns": "noising", "dn": "denoising", "ns+dn": "joint"}[name]  # captions follow the choice
        assert (
            f"The {title} circuit of {len(found.circuits(1)[name])} edges: {expected} %"
            in page.locator("#curves").inner_text()
        )
        assert f"of the {title} circuit at {found.sizes[1]} edges per direction" in page.locator("#shown").inner_text()


def test_hover_shows_scores_gate_and_truth_table(open_page: Open, data: dict[str, Any], found: Report) -> None:
    page = open_page(data)
    tip = page.locator("#tip")
    page.mouse.move(*spot(page, {"node": node_id(page, "logits")}))
    tip.wait_for(state="visible")
    assert tip.locator("b").first.inner_text() == "logits"
    into = [edge for edge in found.gates.sound if edge.endswith("->logits")]
    assert f"in {len(into)} " in tip.inner_text()
    tested = page.evaluate(
        """gatewiseReport.graph.order().filter((edge) =>
        gatewiseReport.model.tablesOf[edge.id].length && !edge.gates.length).at(-1).id"""
    )
    page.mouse.move(5, 5)
    page.mouse.move(*spot(page, {"edge": tested}))
    tip.wait_for(state="visible")
    page.locator("#tip b", has_text="->").wait_for()
    name = tip.locator("b").first.inner_text()
    by = {"AND": "noising only", "OR": "denoising only", "ADDER": "both directions"}
    assert f"found by {by[found.gates.label(name)]}" in tip.inner_text()  # type: ignore[index]
    assert "normalised effect" in tip.inner_text()
    index = found.graph.index(name)
    assert found.calibration is not None
    line = re.search(r"^noising\t(\S+)\t(\S+)", tip.inner_text().replace("\u2212", "-"), flags=re.MULTILINE)
    assert line is not None
    assert float(line[1]) == pytest.approx(found.calibration["ns"].exact[index], abs=0.006)
    assert float(line[2]) == pytest.approx(float(found.gates.ns.scores[index]), rel=0.006)  # type: ignore[index]
    page.mouse.move(5, 5)
    tip.wait_for(state="hidden")


def test_click_shows_a_node_alone(open_page: Open, data: dict[str, Any], found: Report) -> None:
    page = open_page(data)
    page.mouse.click(*spot(page, {"node": node_id(page, "m0")}))
    page.mouse.move(5, 5)
    assert page.locator("#node-title").inner_text().startswith("m0")
    lit = set(page.evaluate("gatewiseReport.graph.lit().map((edge) => edge.name)"))
    assert lit == {edge for edge in found.gates.sound if edge.endswith("->m0") or edge.startswith("m0->")}
    assert "m0 alone" in page.locator("#chosen").inner_text()
    for gate in found.gates:
        if gate.receiver == "m0":
            for sender in gate.senders:
                assert sender in page.locator("#panel").inner_text()
    assert page.locator("#panel .truth").count() > 0
    page.keyboard.press("Escape")
    assert page.locator("#panel h3").first.inner_text() == "Strongest receivers"
    assert page.evaluate("gatewiseReport.graph.lit()") is None


def test_opens_with_the_strongest_edges_and_names(open_page: Open, data: dict[str, Any], found: Report) -> None:
    page = open_page(data, state="")
    assert len(found.gates.sound) > 60
    strength = edge_strength(found.gates)
    weakest = sorted(float(strength[edge]) for edge in found.gates.sound.indices)[-60]
    assert shown(page) == 60
    assert all(float(strength[found.graph.index(edge)]) >= weakest * (1 - 1e-4) for edge in names(page))
    named = page.evaluate(
        """() => {
        const seen = [], kind = CanvasRenderingContext2D.prototype, write = kind.fillText;
        kind.fillText = function (text, ...at) { seen.push(text); write.call(this, text, ...at); };
        gatewiseReport.graph.overlay();
        return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(seen))));
        }"""
    )
    used = {node for edge in names(page) for node in (edge.partition("->")[0], re.split("->|<", edge)[1])}
    assert len(used & set(named)) > 0.9 * len(used)
    page.locator("#show-all").click()
    assert names(page) == set(found.gates.sound)
    page.locator("#show-all").click()
    assert shown(page) == 60


def test_what_a_head_does(open_page: Open, data: dict[str, Any], found: Report) -> None:
    name = next(name for name, on in found.nodes.of.items() if on[0].attention)
    page = open_page(data, state=f"node={name}")
    panel = page.locator("#panel")
    look = found.nodes.of[name][0].attention[0]
    assert panel.locator(".look").count() == len(found.nodes.of[name][0].attention)
    for side, place in (("clean", 0), ("corrupted", 1)):
        tokens = panel.locator(".look").first.locator(".tokens").nth(place).locator("span")
        assert tokens.all_inner_texts() == list(getattr(found.nodes.prompts[0], side))
        position, weight = look.weights[side][0]  # type: ignore[index]
        percent = re.search(r": (\d+) %$", tokens.nth(position).get_attribute("title"))
        assert int(percent[1]) == pytest.approx(100 * weight, abs=0.6)  # type: ignore[index]
    writes = panel.locator(".writes").inner_text().replace("\u2212", "-")
    for value in (
        found.nodes.of[name][0].direct["clean"].correct,
        found.nodes.of[name][0].direct["corrupted"].incorrect,
    ):
        assert re.search(rf"{value:+.1g}".replace("+", "\\+?")[:6], writes)
    for word, _ in found.nodes.of[name][0].direct["clean"].promoted:
        assert word.strip() in writes
    panel.locator(".prompts button").nth(1).click()
    tokens = panel.locator(".look").first.locator(".tokens").first.locator("span")
    assert tokens.all_inner_texts() == list(found.nodes.prompts[1].clean)
    assert f"Normalised effect {round(100 * found.nodes.effect[name])} %" in panel.inner_text().replace("\u2212", "-")


def test_tested_gates_come_first(open_page: Open, data: dict[str, Any], found: Report) -> None:
    assert found.gate_tests is not None
    significant = found.gate_tests.significant
    assert significant, "the fixture has a significant gate"
    page = open_page(data)
    sections = page.evaluate("[...document.querySelectorAll('main > section')].map((e) => e.id)")
    assert sections.index("tested") < sections.index("circuit")
    cards = page.locator("#tested-cards .gate-card")
    assert cards.count() == min(6, len(significant))
    first, card = significant[0], cards.first
    assert card.locator("h3").inner_text().split() == [first.receiver, first.label]
    assert card.locator(".gate-table tbody tr").count() == 2 ** len(first.operands)
    text = card.inner_text().replace("\u2212", "-")
    said = [[float(part) for part in found] for found in re.findall("\u03b3 " + r"(\S+) \((\S+) to (\S+)\)", text)]
    indices = [one for one in first.intervals.gamma.values() if math.isfinite(one.value)]
    for numbers, index in zip(said, indices, strict=True):
        assert numbers == pytest.approx([index.value, index.low, index.high], abs=0.006)
    for name in first.operands:
        assert first.group_labels[name] in text
    page.locator("#filters summary").click()
    page.locator("#gated").check()
    grouped = {edge for one in significant for group in one.groups.values() for edge in group}
    assert names(page) == grouped & set(found.gates.sound)
    card.locator("button").click()
    assert page.locator("#node-title").inner_text().startswith(first.receiver)
    assert page.locator("#panel .gate-card").count() == sum(one.receiver == first.receiver for one in significant)


def test_nothing_is_called_and_or_or_without_a_test(open_page: Open, data: dict[str, Any]) -> None:
    """What direction found an edge is no gate: set-difference labels stand only where they are called so."""
    for gate in data["gates"]["tested"]:
        gate["label"] = "undecided"
        for group in gate["groups"].values():
            group["label"] = "undecided"
            group.pop("labels", None)
    data["tables"] = []
    data["facts"], data["trust"], data["next"] = data["facts"][:1], [], []
    data["edges"]["tested"] = [-1] * len(data["edges"]["tested"])
    page = open_page(data, state="node=m0")
    said = page.locator("#panel").inner_text() + page.locator("#shown").inner_text()
    said += "".join(
        page.locator("#panel [aria-label]").evaluate_all("(all) => all.map((e) => e.getAttribute('aria-label'))")
    )
    columns = page.locator("#panel .ends")  # the scale between OR and AND
    assert len(re.findall(r"\bAND\b|\bADDER\b|\bOR\b", said)) == 3 * columns.count()


def test_the_address_holds_the_view(open_page: Open, data: dict[str, Any], found: Report) -> None:
    page = open_page(data, state="")
    assert page.evaluate("location.hash") in ("", "#")
    page.locator("#which input[value=dn]").check(force=True)
    set_range(page, "#size", 1)
    page.locator("#filters summary").click()
    page.locator("#ports input[value=q]").uncheck()
    set_range(page, "#score", 10)
    page.locator("#layer-to").select_option("4")
    page.locator("#search").fill("m0")
    page.keyboard.press("Enter")
    page.locator(".pin").click()
    page.locator("#show-all").evaluate("(button) => button.click()")
    wait(page, "location.hash.includes('pins') && location.hash.includes('edges')")
    before, address = names(page), page.evaluate("location.hash")
    again = open_page(data, state=address[1:])
    assert names(again) == before
    assert again.locator("#node-title").inner_text().startswith("m0")
    assert again.locator("#pins .chip").count() == 1
    assert again.locator("#size-value").inner_text() == str(found.sizes[1])
    assert not again.locator("#ports input[value=q]").is_checked()
    again.evaluate("location.hash = 'circuit=noising'")
    wait(again, "gatewiseReport.state.circuit === 'ns'")
    assert again.locator("#which input[value=ns]").is_checked()


@pytest.mark.parametrize(
    "state", ["size=7&circuit=<b>&node=nobody&edge=x&pins=,,a&layers=9..x&score=1e9&found=zz", "=", "a=%FF%"]
)
def test_an_address_without_sense_is_ignored(open_page: Open, data: dict[str, Any], state: str) -> None:
    page = open_page(data, state=state)
    assert page.locator("#panel h3").first.inner_text() == "Strongest receivers"
    assert page.locator("#size-value").inner_text() == str(data["sizes"][-1])
    assert shown(page) in (0, 60)  # `found` may leave nothing


def test_pins_stay_in_front(open_page: Open, data: dict[str, Any], found: Report) -> None:
    page = open_page(data, state="node=m0")
    page.locator(".pin").click()
    page.keyboard.press("Escape")
    touching = {edge for edge in found.gates.sound if edge.endswith("->m0") or edge.startswith("m0->")}
    lit = "gatewiseReport.graph.lit().map((edge) => edge.name)"
    assert set(page.evaluate(lit)) == touching
    page.locator("#panel .list button[data-node=logits]").click()
    assert set(page.evaluate(lit)) == touching | {edge for edge in found.gates.sound if edge.endswith("->logits")}
    page.locator("#pins .close").click()
    assert page.locator("#pins").is_hidden()
    page.keyboard.press("Escape")
    assert page.evaluate("gatewiseReport.graph.lit()") is None


def test_lines_between_nodes(open_page: Open, data: dict[str, Any], found: Report, tmp_path: Path) -> None:
    page = open_page(data)
    page.locator("#level input[value=nodes]").check(force=True)
    between = {tuple(re.split("->|<", edge)[:2]) for edge in found.gates.sound}
    drawn = [tuple(re.split("->|<", edge)[:2]) for edge in names(page)]
    assert len(drawn) == len(set(drawn)) == len(between) < len(found.gates.sound)
    radii = page.evaluate("gatewiseReport.graph.laid().radii")
    heads = sorted((abs(effect), radii[node_id(page, name)]) for name, effect in found.nodes.effect.items())
    assert [radius for _, radius in heads] == sorted(radius for _, radius in heads)
    with page.expect_download() as waiting:
        page.locator("#save-json").click()
    waiting.value.save_as(tmp_path / "circuit.json")
    assert Circuit.load(tmp_path / "circuit.json") == found.gates.sound  # all edges behind the lines


def test_gates_without_a_mouse(open_page: Open, data: dict[str, Any]) -> None:
    page = open_page(data)
    first = page.locator("#panel .list button").first
    first.focus()
    name = first.get_attribute("data-node")
    page.keyboard.press("Enter")
    assert page.locator("#node-title").inner_text().startswith(name)
    unnamed = page.evaluate(
        """[...document.querySelectorAll("button, input, select, canvas[tabindex]")].filter((e) =>
        !(e.getAttribute("aria-label") || e.textContent.trim() || (e.labels && e.labels.length))).length"""
    )
    assert unnamed == 0


def test_search(open_page: Open, data: dict[str, Any]) -> None:
    page = open_page(data)
    page.locator("#search").fill("m0")
    assert page.locator("#matches li").first.inner_text().startswith("m0")
    page.keyboard.press("Enter")
    assert page.locator("#node-title").inner_text().startswith("m0")
    page.locator("#search").fill("a5.h0->logits")
    page.keyboard.press("Enter")
    assert page.locator("#panel h3").first.inner_text() == "a5.h0->logits"
    page.locator("#search").fill("zzz")
    assert "nothing shown" in page.locator("#matches").inner_text()


def test_edges_are_drawn_in_the_colours_of_who_found_them(open_page: Open, data: dict[str, Any]) -> None:
    data["gates"] = None  # no beads
    page = open_page(data)
    page.locator("#filters summary").click()
    palette = {kind: tuple(bytes.fromhex(colour[1:])) for kind, colour in FOUND_COLOURS.items()}
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
            page.locator(f"#kinds input[value={other}]").set_checked(other == kind)
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
    assert len(large["gates"]["tested"]) == 40
    assert len(large["nodes"]["of"]) == 100
    wait(page, "gatewiseReport.graph.complete()")
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


@pytest.mark.parametrize("state", ["", "node=m0&pins=logits&level=nodes"])
@pytest.mark.parametrize("width", [390, 800])
def test_narrow_screens_need_no_sideways_scrolling(
    open_page: Open, data: dict[str, Any], width: int, state: str
) -> None:
    page = open_page(data, width=width, height=844, state=state)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("gatewiseReport.graph.laid().upwards") is (width < 600)


def test_text_stays_text(open_page: Open, data: dict[str, Any]) -> None:
    data["title"] = data["model"] = data["command"] = HOSTILE
    data["provenance"]["task"] = HOSTILE
    data["trust"][0]["text"] = data["next_commands"][0] = HOSTILE
    for example in data["examples"]:
        example["clean"] = example["corrupted"] = HOSTILE
        example["correct"] = [HOSTILE]
        for answer in example["answers"].values():
            answer["top"][0][0] = HOSTILE
    for prompt in data["nodes"]["prompts"]:
        prompt["clean"] = prompt["corrupted"] = [HOSTILE] * len(prompt["clean"])
        prompt["correct"] = prompt["incorrect"] = [HOSTILE]
    for on in data["nodes"]["of"].values():
        for one in on:
            for side in ("clean", "corrupted"):
                one["direct"][side]["promoted"] = one["direct"][side]["suppressed"] = [[HOSTILE, 1.0]]
    for gate in data["gates"]["tested"]:
        gate["label"] = HOSTILE
        gate["groups"] = {
            (HOSTILE if i == 0 else name): group for i, (name, group) in enumerate(gate["groups"].items())
        }
        for row in gate["table"]:
            row["set"] = [
                HOSTILE if name in ("G1", "K", "Q") and HOSTILE in gate["groups"] else name for name in row["set"]
            ]
    page = open_page(data, state=f"node=m0&name={quote(HOSTILE)}")
    page.wait_for_timeout(200)
    page.locator("#reset").evaluate("(button) => button.click()")
    assert page.locator("h1").evaluate("(e) => e.textContent") == HOSTILE
    assert page.locator(".prompt").first.evaluate("(e) => e.textContent") == HOSTILE
    assert page.locator("script").count() == 2  # the data and the program
    assert page.locator("img").count() == 0
    assert HOSTILE in page.locator("#command code").evaluate("(e) => e.textContent")


def test_saves_the_circuit_and_the_view(open_page: Open, data: dict[str, Any], found: Report, tmp_path: Path) -> None:
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
    written = ["".join(text.itertext()) for text in root.findall(f".//{space}text")]
    assert {"layer", "0", "1", "h0", "MLP", "input", "logits", "noising only"} <= set(written)  # axis, nodes, legend
    assert any(text.startswith(f"ioi in tiny. All {len(found.gates.sound)} edges") for text in written)  # caption
    page.locator("#filters summary").click()
    page.locator("#kinds input[value=both]").uncheck()
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
    opacity = """async ([x, y]) => {  // while it is dragged, nodes are there already
      for (let i = 0; i < 2; i++) await new Promise((done) => requestAnimationFrame(done));
      const over = document.getElementById("over"), ratio = over.width / over.clientWidth;
      return over.getContext("2d").getImageData(Math.round(ratio * x), Math.round(ratio * y), 1, 1).data[3];
    }"""
    now = page.locator("#over").bounding_box()  # `spot` may have scrolled
    assert page.evaluate(opacity, [x + 60 - now["x"], y - 30 - now["y"]]) == 255
    page.mouse.up()
    page.wait_for_timeout(250)
    nx, ny = spot(page, {"node": node_id(page, name)})
    assert (round(nx - x), round(ny - y)) == (60, -30)
    page.mouse.move(nx, ny)  # what is under the pointer is found where it was moved to
    page.locator("#tip").wait_for(state="visible")
    assert page.locator("#tip b").first.inner_text() == name
    page.locator("#fit").click()
    assert page.evaluate("gatewiseReport.graph.view().scale") == 1


def test_a_circuit_without_a_direction_has_no_legend_of_gates(open_page: Open) -> None:
    tiny = gw.load_model("tiny")
    one = make_report(tiny, gw.task("ioi", tiny, examples=8), "eap-ig", edges=32, random_circuits=0, examples=1)
    page = open_page(one.page_data)
    assert "has no direction" in page.locator("#facts").inner_text()
    assert page.locator("#legend").is_hidden()
    assert names(page) == set(one.circuits()["ns|dn"])
