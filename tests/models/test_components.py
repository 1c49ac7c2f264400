"""Attention in blocks of queries: the same outputs and gradients as all queries at once."""

from __future__ import annotations

import pytest
import torch
from small_models import ARCHITECTURES, random_pairs, small_model
from torch import Tensor

from gatewise.engine.attribution import Attribution
from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.forward.sparse import SparseEngine
from gatewise.engine.setting import Setting
from gatewise.models import components, layout
from gatewise.models.components import queries_at_once


def everything(architecture: str) -> dict[str, Tensor]:
    """Logits, scores and a mask's gradient of a small model, on prompts of several lengths with a shared prefix."""
    model = small_model(architecture, dtype=torch.float64)
    setting = Setting(model, random_pairs(lengths=(9, 6, 9), same=(3, 1, 4)))
    (batch,) = setting.batches()
    on, mask = setting.intervention(batch), model.graph.random_circuit(40, seed=1)
    dense = DenseEngine(model, on)
    matrix = model.graph.matrix(mask.mask.to(model.dtype))
    scores = Attribution(setting, batch).directions(("ns", "dn"))
    return {
        "logits": setting.last_logits(),
        "circuit": SparseEngine(model, on).logits(mask),
        "gradient": dense.gradient(matrix, lambda logits: logits.square().mean())[1],
        "ns": scores["ns"],
        "dn": scores["dn"],
    }


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_blocks_of_queries_change_nothing(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = everything(architecture)
    monkeypatch.setattr(components, "_SMALL_MAP", 0)
    monkeypatch.setattr(components, "MAP_NUMBERS", 200)
    monkeypatch.setattr(layout, "_KEPT_MASK", 0)
    assert queries_at_once(4 * 3, 6, 9) == 1
    for name, values in everything(architecture).items():
        torch.testing.assert_close(values, whole[name], rtol=1e-9, atol=1e-12)


def test_short_prompts_are_never_cut_up() -> None:
    """So numbers of the usual tasks do not depend on how many examples or rows are run at once."""
    assert queries_at_once(10**9, 64, 64) == 64
    assert queries_at_once(8, 4000, 4000) == 32
    assert queries_at_once(10**9, 4000, 4000) == 1
