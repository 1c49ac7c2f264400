"""The masked engine against the dense one: masks between 0 and 1, closed edges, a mask for each example."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import ARCHITECTURES, random_pairs, small_model
from torch import Tensor

from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.forward.masked import MaskedEngine
from gatewise.engine.runs.activations import Intervention
from gatewise.engine.setting import Setting
from gatewise.models.model import Model

ROOMS = {"nothing kept": 0, "some kept": 20_000, "all kept": 1 << 30}


def masks(model: Model, count: int, opened: float, seed: int = 0) -> Tensor:
    """Random masks of which a share is open, other edges for each, some wholly. [count, port, sender]"""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, model.graph.n_edges)
    values = (1.5 * torch.rand(shape, generator=generator, dtype=model.dtype)).clamp(max=1)
    return model.graph.matrix(values * (torch.rand(shape, generator=generator) < opened))


def loss(logits: Tensor) -> Tensor:
    """A mean over examples."""
    return logits.log_softmax(dim=-1)[:, 3].square().mean()


@pytest.mark.parametrize("room", ROOMS.values(), ids=ROOMS)
@pytest.mark.parametrize("opened", [1.0, 0.5, 0.2])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_agrees_with_the_dense_engine_on_open_edges(architecture: str, opened: float, room: int) -> None:
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs()
    setting = Setting(model, pairs)
    on = setting.intervention(setting.batches()[0])
    each = masks(model, len(pairs), opened)
    value, gradient = MaskedEngine(model, on, room).gradient(each, loss)
    values = []
    for i in range(len(pairs)):  # the dense engine knows one mask: example by example
        alone = Setting(model, pairs[i : i + 1])
        twin = DenseEngine(model, alone.intervention(alone.batches()[0]))
        expected, into_mask = twin.gradient(each[i], loss)
        values.append(float(expected))
        open_only = into_mask.double() * (each[i] != 0) / len(pairs)
        torch.testing.assert_close(gradient[i], open_only, atol=1e-5, rtol=1e-5)  # the twin sums in float32
    assert float(value) == pytest.approx(sum(values) / len(values), rel=1e-9)


def compare(model: Model, on: Intervention, mask: Tensor) -> None:
    """The same mask for all examples, which the dense engine can run at once."""
    value, gradient = MaskedEngine(model, on, 1 << 30).gradient(mask.expand(len(on.reference_logits), -1, -1), loss)
    expected, into_mask = DenseEngine(model, on).gradient(mask, loss)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient.sum(dim=0), into_mask * (mask != 0), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("ablation", ["zero", "mean"])
@pytest.mark.parametrize("opened", [0.3, 0.1])
def test_nodes_that_read_nothing_still_differ_from_an_ablation(ablation: Any, opened: float) -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    setting = Setting(model, pairs, ablation=ablation)
    on = setting.intervention(setting.batches()[0])
    for seed in range(6):
        compare(model, on, masks(model, 1, opened, seed)[0])


def test_merged_ports() -> None:
    model, pairs = small_model("llama", qkv="merged"), random_pairs()
    setting = Setting(model, pairs)
    on = setting.intervention(setting.batches()[0])
    for opened in (1.0, 0.3, 0.15):
        compare(model, on, masks(model, 1, opened)[0])


def test_only_what_is_open_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one path, three sublayers of four are run; of edges that lead nowhere, none."""
    model, pairs = small_model("gpt2"), random_pairs()
    setting = Setting(model, pairs)
    on = setting.intervention(setting.batches()[0])
    ran: list[int] = []
    run = MaskedEngine._run
    monkeypatch.setattr(
        MaskedEngine,
        "_run",
        lambda self, sublayer, x: ran.append(sublayer.index) or run(self, sublayer, x),  # type: ignore[func-returns-value]
    )

    def sublayers(*edges: str) -> list[int]:
        ran.clear()
        mask = model.graph.matrix(model.graph.circuit(edges).mask.float())
        MaskedEngine(model, on, 1 << 30).gradient(mask.expand(len(pairs), -1, -1), loss)
        return list(ran)

    assert sublayers("input->a0.h1<v>", "a0.h1->m0", "m0->a1.h2<q>", "a1.h2->logits") == [0, 1, 2]
    assert sublayers("input->a0.h1<v>", "a0.h1->m0", "m0->m1") == []  # no path to the logits
    assert sublayers("a0.h1->m1", "m1->logits") == []  # nothing that differs is read
