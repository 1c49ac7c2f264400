"""Forecasts: what the counter counts, and that forecasts agree with what code of known shape takes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import gatewise as gw
from gatewise.cli.main import app
from gatewise.engine.attribution import Attribution
from gatewise.engine.runs.batches import MOST_WITH_GRADIENT
from gatewise.engine.runs.counting import Counter
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.methods import EdgePruning
from gatewise.models.config import empty_model
from gatewise.models.loader import TINY_FOLDER
from gatewise.plan import forecast
from gatewise.plan.shapes import KNOWN, known_shape
from gatewise.plan.sources import subject

PUBLISHED = {  # millions of parameters, as their authors give them
    "openai-community/gpt2": 124, "openai-community/gpt2-xl": 1558, "EleutherAI/pythia-70m": 70,
    "EleutherAI/pythia-6.9b": 6857, "HuggingFaceTB/SmolLM2-135M": 135, "HuggingFaceTB/SmolLM2-1.7B": 1711,
    "Qwen/Qwen2.5-0.5B": 494, "Qwen/Qwen2.5-7B": 7616, "meta-llama/Llama-3.2-1B": 1236,
    "meta-llama/Llama-3.1-8B": 8030, "meta-llama/Llama-3.1-70B": 70_554,
}  # fmt: skip


def test_counter_counts_what_lives_at_once() -> None:
    with Counter() as counter:
        a = torch.empty(1000, device="meta")  # 4,000 bytes
        b = a + 1  # 8,000
        view = b[:10]
        del b  # the view keeps it alive
        assert counter.live == 8_000
        del view, a
        assert counter.live == 0
        torch.empty(10, 20, device="meta") @ torch.empty(20, 30, device="meta")
    assert counter.peak == 8_000
    assert counter.operations == 2 * 10 * 20 * 30
    assert counter.moved >= 4 * (10 * 20 + 20 * 30 + 10 * 30)


def test_counter_does_not_count_what_was_there() -> None:
    weight = torch.empty(1000, 1000, device="meta")
    with Counter() as counter:
        torch.empty(1, 1000, device="meta") @ weight.T
        weight.add_(1)
    assert counter.peak == 2 * 4_000


@pytest.mark.parametrize("name", PUBLISHED)
def test_known_shapes_have_the_published_size(name: str) -> None:
    count = sum(parameter.numel() for parameter in empty_model(KNOWN[name], name).parameters())
    assert count / 1e6 == pytest.approx(PUBLISHED[name], rel=0.01)


def test_names_without_owner() -> None:
    found = known_shape("llama-3.1-8b")
    assert found is not None
    assert found[0] == "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize("method", ["eap", "eap-ig", "acdc", "edge-pruning", "ranking"])
def test_a_large_model_without_weights(method: str) -> None:
    started = time.process_time()
    found = forecast("meta-llama/Llama-3.1-8B", "ioi", method, dtype="bfloat16", free="24GB")
    assert time.process_time() - started < 30
    assert found.graph_edges == 1_592_881
    assert found.weights == 2 * found.parameters
    assert found.peak >= found.weights + found.runs + found.runtime
    assert found.fits == (found.peak < 0.9 * 24 * 2**30)
    assert found.seconds > 0


def test_own_folder_and_tokenizer() -> None:
    """A built-in model is planned with its own words: the length of the pairs is that of the task."""
    about = subject("tiny", "ioi", 8, "float32")
    assert about.measured_tokens
    assert about.model.device.type == "meta"
    assert about.model.graph.n_edges == 3_628
    assert forecast("tiny", examples=8).tokens == about.pairs.width


@pytest.mark.parametrize(("dtype", "budget"), [("float32", "4GB"), ("bfloat16", "1GB")])
@pytest.mark.parametrize("name", ["gpt2", "pythia-70m", "Qwen2.5-0.5B", "meta-llama/Llama-3.1-8B"])
def test_micro_batches_keep_the_budget(name: str, dtype: str, budget: str) -> None:
    """What is split by an estimate takes, by count, no more than the budget."""
    about = subject(name, "ioi", 200, dtype)
    setting = Setting(about.model, about.pairs, memory=budget)
    batch = setting.batches(gradient=True)[0]
    with Counter() as counter:
        Attribution(setting, batch).directions(("ns", "dn"))
    assert counter.peak <= int(budget[0]) * 2**30
    assert (
        len(batch.pairs) == MOST_WITH_GRADIENT or counter.peak >= 0.3 * int(budget[0]) * 2**30
    )  # and is not far below it


def test_more_examples_take_no_more_memory() -> None:
    few, many = (forecast("gpt2", "ioi", "eap", examples=n) for n in (100, 10_000))
    assert many.runs == few.runs
    assert many.f == pytest.approx(few.f, rel=0.05)
    assert many.seconds == pytest.approx(100 * few.seconds, rel=0.1)


def test_advice() -> None:
    small = forecast("gpt2", "ioi", "edge-pruning", free="1GB")
    assert not small.fits
    assert any("bfloat16" in text for text in small.advice)
    assert any("eap" in text for text in small.advice)
    assert forecast("gpt2", free="100GB").fits


def test_steps_of_edge_pruning_cost_what_is_open() -> None:
    """With a mask for each example; one mask for all is run whole at every step."""
    few, many, first = (
        forecast("tiny", "ioi", EdgePruning(draw="each", steps=steps), examples=8, edges=edges)
        for edges, steps in ((20, 300), (3_000, 300), (20, 2))
    )
    assert few.f < 0.8 * many.f
    assert first.f / 2 > 1.2 * few.f / 300  # the first steps are the dear ones
    one, other = (forecast("tiny", "ioi", EdgePruning(draw="one"), examples=8, edges=edges) for edges in (20, 3_000))
    assert one.f == other.f


def test_errors_say_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(GatewiseError, match="config.json alone"):
        forecast("someone/unheard-of")
    with pytest.raises(GatewiseError, match="has no config.json"):
        forecast(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 10**9}))
    with pytest.raises(GatewiseError, match="n_layer is 1000000000"):
        forecast(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(GatewiseError, match="bert"):
        forecast(str(tmp_path))
    with pytest.raises(GatewiseError, match="no method 'magic'"):
        forecast("gpt2", method="magic")
    with pytest.raises(GatewiseError, match="the length is known for ioi, gt, sa"):
        forecast("gpt2", "pairs.csv")
    with pytest.raises(GatewiseError, match="needs no plan"):
        forecast("synthetic:and")


def test_command() -> None:
    asked = ["plan", "meta-llama/Llama-3.1-8B", "--task", "ioi", "--method", "eap"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0
    assert "1,592,881 edges" in shown.output
    found = json.loads(CliRunner().invoke(app, [*asked, "--dtype", "bfloat16", "--json"]).output)
    assert found["weights"] == 2 * found["parameters"]
    assert found["fits"] in (True, False)


def test_a_plan_counts_the_pairs_that_a_file_gives(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    rows = [
        f"The {noun}s helped,The {noun} helped,themselves,herself" for noun in ("girl", "queen", "mother", "sister")
    ]
    path.write_text("\n".join(["clean,corrupted,correct,incorrect", *rows]))
    assert forecast("tiny", str(path)).examples == len(gw.task(path, gw.load_model("tiny")).train) == 2


@pytest.mark.parametrize("method", ["eap", "acdc"])
def test_a_plan_of_long_prompts_keeps_the_budget_or_is_refused_as_the_search_would_be(
    method: str, tmp_path: Path
) -> None:
    """1,000 tokens, all but the first of which differ between the runs."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((TINY_FOLDER / name).read_bytes())
    config = json.loads((tmp_path / "config.json").read_text()) | {"n_positions": 1_100}
    (tmp_path / "config.json").write_text(json.dumps(config))
    long = " ".join(["the"] * 1_000)
    rows = [f"The {noun}s helped {long},The {noun} helped {long},themselves,herself" for noun in ("girl", "queen")]
    path = tmp_path / "long.csv"
    path.write_text("\n".join(["clean,corrupted,correct,incorrect", *rows, *rows]))
    planned = forecast(str(tmp_path), str(path), method, memory="1GB")
    assert planned.tokens > 1_000
    assert 2**26 < planned.runs + planned.buffers <= 2**30
    with pytest.raises(GatewiseError, match=r"and the budget is 50\.0 MiB"):
        forecast(str(tmp_path), str(path), method, memory="50MB")
