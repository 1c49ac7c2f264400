"""The dense engine against transformers and against the reference twin, on random circuits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reference import reference_of_many
from small_models import ARCHITECTURES, random_pairs, small_model

from gatewise.circuits.circuit import Circuit
from gatewise.compute import Compute
from gatewise.engine import last_logits, run_circuit, run_circuits
from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.running import dense_mask
from gatewise.engine.runs.activations import both_runs
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.models.model import Model

SIZES = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)


def random_circuits(model: Model, count: int, seed: int = 0) -> list[Circuit]:
    """Circuits of all sizes, from nearly empty to nearly full."""
    edges = model.graph.n_edges
    return [model.graph.random_circuit(int(edges * SIZES[i % len(SIZES)]), seed=seed + i) for i in range(count)]


def transformers_logits(model: Model, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.hf(tokens[None]).logits[0, -1]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_full_graph_is_transformers_and_empty_circuit_is_the_other_run(architecture: str) -> None:
    model, pairs = small_model(architecture), random_pairs()
    full = run_circuit(model, pairs, model.graph.full())
    empty = run_circuit(model, pairs, model.graph.empty())
    for row in range(len(pairs)):
        length = int(pairs.lengths[row])
        torch.testing.assert_close(full[row], transformers_logits(model, pairs.clean[row, -length:]), atol=1e-5, rtol=0)
        other = transformers_logits(model, pairs.corrupted[row, -length:])
        torch.testing.assert_close(empty[row], other, atol=1e-5, rtol=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_agrees_with_the_reference_on_200_random_circuits(architecture: str) -> None:
    """Both dtypes with the reference in float64, which is slow."""
    fine, pairs = small_model(architecture, dtype=torch.float64), random_pairs(lengths=(6, 4))
    circuits = random_circuits(fine, 200)
    for direction, chosen in (("ns", circuits[:100]), ("dn", circuits[100:])):
        expected = reference_of_many(fine, pairs, chosen, direction)
        for model, tolerance in ((fine, 1e-9), (small_model(architecture), 1e-4)):
            found = run_circuits(model, pairs, chosen, direction)  # type: ignore[arg-type]
            torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("ablation", ["zero", "mean"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_constant_ablations_agree_with_the_reference(architecture: str, ablation: str) -> None:
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs(lengths=(6, 4))
    circuits = [model.graph.empty(), *random_circuits(model, 20)]
    found = run_circuits(model, pairs, circuits, ablation=ablation)  # type: ignore[arg-type]
    expected = reference_of_many(model, pairs, circuits, ablation=ablation)
    torch.testing.assert_close(torch.stack(list(found)), expected, atol=1e-9, rtol=0)


def test_noise_has_the_moments_of_the_node_and_is_seeded() -> None:
    model, pairs = small_model("gpt2"), random_pairs(lengths=(6,) * 64, same=(0,) * 64)
    settings = [Setting(model, pairs, ablation="noise", seed=seed) for seed in (1, 1, 2)]
    first, again, different = (one.intervention(one.batches()[0]).other for one in settings)
    assert torch.equal(first, again)
    assert not torch.equal(first, different)
    clean = both_runs(model, pairs, share_prefix=False).clean.outputs
    torch.testing.assert_close(first.mean((1, 2)), clean.mean((1, 2)), atol=0.4, rtol=0)
    torch.testing.assert_close(first.std((1, 2)), clean.std((1, 2)), atol=0.3, rtol=0.3)


def test_noise_does_not_depend_on_batches_or_padding() -> None:
    model, pairs = small_model("gpt2"), random_pairs(lengths=(7, 5, 7, 4))
    circuit = model.graph.random_circuit(100)
    whole = run_circuit(model, pairs, circuit, ablation="noise", seed=3)
    split = run_circuit(model, pairs, circuit, ablation="noise", seed=3, compute=Compute(memory=150_000))
    torch.testing.assert_close(whole, split, atol=1e-5, rtol=0)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_merged_ports_are_split_ports_kept_together(architecture: str) -> None:
    merged, split = (small_model(architecture, qkv=qkv) for qkv in ("merged", "split"))
    pairs = random_pairs()
    for circuit in random_circuits(merged, 10):
        names = []
        for name in circuit.edges:
            heads = name.partition("->")[2].startswith("a")
            names += [f"{name}<{kind}>" for kind in "qkv"] if heads else [name]
        expected = run_circuit(split, pairs, split.graph.circuit(names))
        torch.testing.assert_close(run_circuit(merged, pairs, circuit), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dn_is_ns_with_the_sides_swapped(architecture: str) -> None:
    model, pairs = small_model(architecture), random_pairs()
    for circuit in random_circuits(model, 7):
        dn = run_circuit(model, pairs, circuit, "dn")
        assert torch.equal(dn, run_circuit(model, pairs.swapped(), circuit, "ns"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_padding_batch_size_and_prefix_change_nothing(architecture: str) -> None:
    """Float noise only: 1e-12 in float64."""
    model = small_model(architecture, dtype=torch.float64)
    pairs = random_pairs(lengths=(9, 4, 7, 9, 3), same=(8, 1, 3, 5, 2))
    circuit = model.graph.random_circuit(model.graph.n_edges // 2)
    whole = run_circuit(model, pairs, circuit)
    alone = torch.cat([run_circuit(model, pairs[i : i + 1], circuit) for i in range(len(pairs))])
    without_prefix = both_runs(model, pairs, share_prefix=False).intervention(model, "ns")
    torch.testing.assert_close(whole, alone, atol=1e-12, rtol=0)
    found = DenseEngine(model, without_prefix).logits(dense_mask(model, circuit))
    torch.testing.assert_close(whole, found, atol=1e-12, rtol=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradient_is_autograds(architecture: str) -> None:
    """Against finite differences of the same engine, in float64."""
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs()
    engine = DenseEngine(model, both_runs(model, pairs).intervention(model, "ns"))
    generator = torch.Generator().manual_seed(0)
    mask = model.graph.matrix(torch.rand(model.graph.n_edges, generator=generator, dtype=torch.float64))
    value, gradient = engine.gradient(mask, lambda logits: pairs.logit_diff(logits).mean())
    torch.testing.assert_close(value, pairs.logit_diff(engine.logits(mask)).mean())
    for edge in torch.randperm(model.graph.n_edges, generator=generator)[:40].tolist():
        port, sender = int(model.graph.edge_port[edge]), int(model.graph.edge_sender[edge])
        step = torch.zeros_like(mask)
        step[port, sender] = 1e-5
        up, down = (pairs.logit_diff(engine.logits(mask + sign * step)).mean() for sign in (1, -1))
        assert float(gradient[port, sender]) == pytest.approx(float((up - down) / 2e-5), abs=2e-6)


def test_last_logits_are_those_of_each_side() -> None:
    model, pairs = small_model("llama"), random_pairs()
    torch.testing.assert_close(last_logits(model, pairs), run_circuit(model, pairs, model.graph.full()))
    corrupted = run_circuit(model, pairs, model.graph.full(), "dn")
    torch.testing.assert_close(last_logits(model, pairs, "corrupted"), corrupted, atol=1e-6, rtol=1e-5)


def test_bfloat16_runs() -> None:
    model, pairs = small_model("llama", dtype=torch.bfloat16), random_pairs()
    assert run_circuit(model, pairs, model.graph.random_circuit(50)).dtype == torch.bfloat16


def test_errors_say_the_way_out() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    with pytest.raises(GatewiseError, match="'ns' .*'dn'"):
        run_circuit(model, pairs, model.graph.full(), "sideways")  # type: ignore[arg-type]
    with pytest.raises(GatewiseError, match="direction='ns'"):
        run_circuit(model, pairs, model.graph.full(), "dn", ablation="zero")
    with pytest.raises(GatewiseError, match="same `qkv`"):
        run_circuit(model, pairs, small_model("gpt2", qkv="merged").graph.full())
    with pytest.raises(GatewiseError, match="Raise it"):
        run_circuit(model, pairs, model.graph.full(), compute=Compute(memory="1kB"))
    with pytest.raises(GatewiseError, match="another tokenizer"):
        run_circuit(small_model("gpt2"), replace(pairs, clean=pairs.clean + 100), model.graph.full())
    with pytest.raises(GatewiseError, match="such as '8GB'"):
        run_circuit(model, pairs, model.graph.full(), compute=Compute(memory="lots"))
