"""Every fast way to the divergence against all logits at once: blocks of tokens, few heads, anchors with bounds."""

from __future__ import annotations

import pytest
import torch
from small_models import random_pairs, small_model
from torch import Tensor

from gatewise.engine.patching.incremental import State
from gatewise.engine.patching.kl_screening import Divergence
from gatewise.engine.patching.low_rank_unembedding import UnembeddingBases, UnembeddingBasis
from gatewise.engine.runs.activations import both_runs
from gatewise.models.model import Model

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11}
DTYPES = [torch.float32, torch.float64]


@pytest.fixture(autouse=True)
def _as_if_the_vocabulary_were_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gatewise.engine.patching.kl_screening._SMALLEST_VOCABULARY", 2)
    monkeypatch.setattr("gatewise.engine.patching.kl_screening._LEAST_TOKENS", 1)
    monkeypatch.setattr("gatewise.engine.patching.kl_screening._BLOCK", 600)  # several blocks, the last one smaller
    monkeypatch.setattr("gatewise.engine.patching.low_rank_unembedding._WIDEST", 1.0)


def random_residuals(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def naive(model: Model, reference: Tensor, residual: Tensor) -> Tensor:
    """KL by all logits at once, in float64."""
    log_p, log_q = (model.unembed(x).double().log_softmax(-1) for x in (reference, residual))
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def basis_of(model: Model, senders: list[int]) -> UnembeddingBasis:
    basis = UnembeddingBases(model).of(senders, residuals=1000, examples=3)
    assert basis is not None
    return basis


def written(model: Model, senders: list[int], rows: int, seed: int) -> Tensor:
    """What these heads might write: random mixtures of the rows of their output maps. [row, 3, d]"""
    graph, total = model.graph, torch.zeros(rows, 3, model.d_model, dtype=model.dtype)
    for sender in senders:
        index = graph.sublayer_of_sender[sender]
        out = model.sublayers[index - 1].out[sender - graph.sender_slices[index].start]  # type: ignore[union-attr]
        total += random_residuals(rows, 3, len(out), dtype=model.dtype, seed=seed + sender) @ out
    return total


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_blocks_of_tokens_are_all_tokens(architecture: str, dtype: torch.dtype) -> None:
    model = small_model(architecture, dtype=dtype)
    reference, residual = (random_residuals(*shape, 3, 16, dtype=dtype, seed=len(shape)) for shape in ((), (2, 9)))
    found = Divergence(model, model.unembed(reference)).exact(residual)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, naive(model, reference, residual), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("architecture", "heads"), [("gpt2", [7]), ("gpt2", [1, 3]), ("llama", [6, 9]), ("qwen2", [2])]
)
def test_what_a_few_heads_write_is_unembedded_exactly(architecture: str, heads: list[int], dtype: torch.dtype) -> None:
    """Also for a second chain from another start within the basis, which uses the same known logits."""
    model = small_model(architecture, dtype=dtype)
    reference, start = (random_residuals(3, 16, dtype=dtype, seed=seed) for seed in (1, 2))
    divergence, basis = Divergence(model, model.unembed(reference)), basis_of(model, heads)
    bases = []
    for turn in range(3):
        chain = start + written(model, heads, rows=7, seed=10 * turn).cumsum(dim=0)
        value, bound = divergence.estimate(chain, 0.01, basis)
        expected = naive(model, reference, chain)
        torch.testing.assert_close(value, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
        assert not bound.any()
        bases.append(divergence._known)
        start = chain[-1]
    assert bases == [bases[0]] * 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_known_logits_move_from_basis_to_basis(dtype: torch.dtype) -> None:
    model = small_model("llama", dtype=dtype)
    reference, start = (random_residuals(3, 16, dtype=dtype, seed=seed) for seed in (1, 2))
    divergence, moves = Divergence(model, model.unembed(reference)), []
    for turn in range(20):
        heads = [6 + turn % 3]
        chain = start + 0.3 * written(model, heads, rows=4, seed=10 * turn)
        value, bound = divergence.estimate(chain, 0.01, basis_of(model, heads), start)
        torch.testing.assert_close(
            value, naive(model, reference, chain), atol=TOLERANCE[dtype], rtol=5 * TOLERANCE[dtype]
        )
        assert not bound.any()
        assert divergence._known is not None
        moves.append(divergence._known.moves)
        start = chain[turn % 4]
    assert moves == [*range(17), 0, 1, 2]


def test_new_logits_are_taken_where_the_old_ones_do_not_serve() -> None:
    model = small_model("gpt2", dtype=torch.float64)
    reference = random_residuals(3, 16, dtype=torch.float64)
    divergence = Divergence(model, model.unembed(reference))
    for seed, heads in enumerate(([7], [7], [6], [7])):
        chain = random_residuals(3, 16, dtype=torch.float64, seed=seed) + written(model, heads, rows=4, seed=seed)
        value, bound = divergence.estimate(chain, 0.01, basis_of(model, heads))
        torch.testing.assert_close(value, naive(model, reference, chain), atol=1e-11, rtol=0)
        assert not bound.any()


def test_residuals_outside_the_basis_are_noticed() -> None:
    model = small_model("llama", dtype=torch.float64)
    reference = random_residuals(3, 16, dtype=torch.float64)
    divergence, basis = Divergence(model, model.unembed(reference)), basis_of(model, [7])
    chain = reference + written(model, [7], rows=5, seed=0)
    chain[3] += 1e-9 * written(model, [6], rows=1, seed=1)[0]
    assert divergence._low_rank(chain, basis, reference) is None
    value, bound = divergence.estimate(chain, 1.0, basis)
    expected = naive(model, reference, chain)
    assert (expected >= value - 1e-11).all()
    assert (expected <= value + bound + 1e-11).all()


@pytest.mark.parametrize("low_rank", [False, True])
def test_distances_too_large_for_the_exponents_are_right(low_rank: bool) -> None:
    """So far from the reference that float32 overflows: those rows are unembedded at once."""
    model = small_model("gpt2")
    with torch.no_grad():
        model.head.mul_(40)
    reference = random_residuals(3, 16, dtype=torch.float32)
    divergence = Divergence(model, model.unembed(reference))
    chain = 3 * written(model, [7], rows=6, seed=0)
    value, _ = divergence.estimate(chain, 1e-9, basis_of(model, [7]) if low_rank else None)
    expected = naive(model, reference, chain)
    assert expected.max() > 100
    torch.testing.assert_close(value, expected, atol=0, rtol=1e-5)


def test_bases_are_refused_where_they_would_be_wrong_or_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    known_bases = UnembeddingBases(small_model("gpt2"))
    for senders in ([6, 10], [5], [0], []):  # a head with an MLP, an MLP, the embedding, nothing
        assert known_bases.of(senders, residuals=1000, examples=3) is None
    assert known_bases.of([7], residuals=1, examples=3) is None
    assert UnembeddingBases(small_model("gemma2")).of([2], residuals=1000, examples=3) is None  # softcap, coupled heads
    assert UnembeddingBases(small_model("gpt2", dtype=torch.bfloat16)).of([7], residuals=1000, examples=3) is None
    monkeypatch.setattr("gatewise.engine.patching.low_rank_unembedding._WIDEST", 0.25)
    assert known_bases.of([7, 6], residuals=1000, examples=3) is None
    assert known_bases.of([7], residuals=1000, examples=3) is known_bases.of([7], residuals=1000, examples=3)


@pytest.mark.parametrize("wanted", [0.0, 1e-4, 1e-2])
def test_bounds_hold(wanted: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In small and large steps, the exact value lies between the estimate and estimate plus bound."""
    monkeypatch.setattr(Divergence, "_anchors_pay", lambda *_: True)
    monkeypatch.setattr("gatewise.engine.patching.kl_screening._LOOSE", 2.0)  # never exact
    model = small_model("gpt2", dtype=torch.float64)
    reference = random_residuals(3, 16, dtype=torch.float64)
    divergence = Divergence(model, model.unembed(reference))
    for seed, size in enumerate((0.001, 0.03, 0.3)):
        chain = reference + size * random_residuals(20, 3, 16, dtype=torch.float64, seed=seed + 1).cumsum(dim=0)
        value, bound = divergence.estimate(chain, wanted)
        expected = naive(model, reference, chain)
        torch.testing.assert_close(divergence.exact(chain), expected, atol=1e-10, rtol=0)
        assert (expected >= value - 1e-10).all()
        assert (expected <= value + bound + 1e-10).all()
        assert bound.max() > 0
        if size == 0.001:
            assert float(bound.max()) < 1e-3


def test_anchors_are_made_where_they_pay() -> None:
    """For many residuals in small steps; forgetting them leaves no trace."""
    model = small_model("gpt2", dtype=torch.float64)
    reference = random_residuals(3, 16, dtype=torch.float64)
    divergence = Divergence(model, model.unembed(reference))
    steps = random_residuals(20, 3, 16, dtype=torch.float64, seed=1)
    large, small = (reference + size * steps.cumsum(dim=0) for size in (1.0, 1e-3))
    found = []
    for chain, residuals, made in ((large, 100, False), (small, 20, False), (small, 100, True), (small, 100, True)):
        divergence.restart(residuals)
        value, bound = divergence.estimate(chain, 1e-3)
        assert (divergence._anchors is not None) == made
        expected = naive(model, reference, chain)
        assert (expected >= value - 1e-11).all()
        assert (expected <= value + bound + 1e-11).all()
        found.append(torch.stack([value, bound]))
    assert torch.equal(found[-1], found[-2])


def test_removed_sums_up_what_is_carried() -> None:
    model, pairs = small_model("llama", dtype=torch.float64), random_pairs()
    runs = both_runs(model, pairs)
    on = runs.intervention(model, "ns")
    state = State(model, on, runs.reference("ns").outputs, model.graph.edge_index >= 0)
    for positions in (1, on.layout.window):
        expected = -state.carried([4, 0, 2], positions).cumsum(dim=0)
        torch.testing.assert_close(state.removed([4, 0, 2], positions), expected, atol=1e-12, rtol=0)
