"""Evaluation against its definitions, computed the long way."""

from __future__ import annotations

import pytest
import torch
from small_models import random_pairs, small_model

from gatewise.compute import Compute
from gatewise.engine import last_logits, run_circuit
from gatewise.errors import GatewiseError
from gatewise.evaluation import Evaluations, evaluate


def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.kl_div(q.log_softmax(-1), p.log_softmax(-1), log_target=True, reduction="none").sum(-1)


def test_measures_are_their_definitions() -> None:
    model, pairs = small_model("gpt2", dtype=torch.float64), random_pairs()
    circuit = model.graph.random_circuit(60)
    found = evaluate(model, pairs, circuit)
    g, c, without = (run_circuit(model, pairs, x) for x in (model.graph.full(), circuit, ~circuit))
    assert found.faithfulness.mean == pytest.approx(float(kl(g, c).mean()))
    assert found.completeness.mean == pytest.approx(float(kl(without, g).mean()))
    assert found.complement.kl_from_full.mean == pytest.approx(float(kl(g, without).mean()))
    assert found.faithfulness.error == pytest.approx(float(kl(g, c).std()) / len(pairs) ** 0.5)
    assert found.circuit.logit_diff.mean == pytest.approx(float(pairs.logit_diff(c).mean()))
    assert found.complement.accuracy.mean == pytest.approx(float((pairs.logit_diff(without) > 0).double().mean()))
    assert found.circuit.top_accuracy.mean == pytest.approx(float(pairs.top1_accuracy(c).double().mean()))
    corrupted = last_logits(model, pairs, "corrupted")
    assert found.recovered == pytest.approx(1 - float(kl(g, c).mean() / kl(g, corrupted).mean()))
    assert found.destroyed == pytest.approx(float(kl(without, g).mean() / kl(corrupted, g).mean()))


def test_full_and_empty_are_the_ends_of_the_scale() -> None:
    model, pairs = small_model("llama"), random_pairs()
    full, empty = evaluate(model, pairs, [model.graph.full(), model.graph.empty()], random_circuits=0)
    assert full.recovered == pytest.approx(1, abs=1e-6)
    assert full.recovered_logit_diff == pytest.approx(1, abs=1e-5)
    assert empty.recovered == pytest.approx(0, abs=1e-6)
    assert full.destroyed == pytest.approx(1, abs=1e-6)
    assert empty.destroyed == pytest.approx(0, abs=1e-6)
    assert full.sparsity == 0
    assert empty.sparsity == 1


def test_the_second_side_compares_with_the_corrupted_run() -> None:
    model, pairs = small_model("gpt2", dtype=torch.float64), random_pairs()
    circuit = model.graph.random_circuit(60).with_provenance(direction="ns+dn")
    found = evaluate(model, pairs, circuit, random_circuits=0)
    corrupted, clean = last_logits(model, pairs, "corrupted"), last_logits(model, pairs, "clean")
    denoised = run_circuit(model, pairs, circuit, "dn")
    assert found.dn_circuit is not None
    assert found.recovered_dn is not None
    assert found.dn_circuit.kl_from_full.mean == pytest.approx(float(kl(corrupted, denoised).mean()))
    assert found.dn_circuit.logit_diff.mean == pytest.approx(float(pairs.logit_diff(denoised).mean()))
    share = 1 - float(kl(corrupted, denoised).mean() / kl(corrupted, clean).mean())
    assert found.recovered_dn == pytest.approx(share)
    assert found.recovered_both == pytest.approx(min(found.recovered, share))
    assert found.two_sided
    assert found.per_example[0]["dn_circuit_kl_from_full"] == pytest.approx(float(kl(corrupted, denoised)[0]))
    assert found.row()["recovered_both"] == found.recovered_both


def test_the_second_side_is_that_of_the_pairs_the_other_way_round() -> None:
    model, pairs = small_model("llama", dtype=torch.float64), random_pairs()
    circuit = model.graph.random_circuit(60)
    found = evaluate(model, pairs, circuit, random_circuits=0)
    swapped = evaluate(model, pairs.swapped(), circuit, random_circuits=0)
    assert found.recovered_dn == pytest.approx(swapped.recovered)
    assert found.recovered == pytest.approx(swapped.recovered_dn)
    assert found.recovered_both == pytest.approx(swapped.recovered_both)


def test_ablations_without_a_corrupted_run_have_one_side() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    circuit = model.graph.random_circuit(60).with_provenance(direction="ns+dn")
    for options in ({"ablation": "mean"}, {"denoise": False}):
        found = evaluate(model, pairs, circuit, random_circuits=0, **options)
        assert (found.dn_circuit, found.recovered_dn, found.recovered_both) == (None, None, None)
        assert not found.two_sided
        assert "dn_circuit_logit_diff" not in found.per_example[0]


def test_random_baseline_is_the_mean_over_random_circuits_of_the_size() -> None:
    model, pairs = small_model("gpt2", dtype=torch.float64), random_pairs()
    circuit = model.graph.random_circuit(60, seed=99)
    found = evaluate(model, pairs, circuit, random_circuits=2, seed=5)
    expected = [
        evaluate(model, pairs, model.graph.random_circuit(60, seed=5000 + i), random_circuits=0) for i in (0, 1)
    ]
    assert found.random_circuit is not None
    assert found.random_circuit.kl_from_full.mean == pytest.approx(sum(e.faithfulness.mean for e in expected) / 2)


def test_batches_change_nothing() -> None:
    model, pairs = small_model("gpt2", dtype=torch.float64), random_pairs(lengths=(7, 5, 6, 7))
    circuit = model.graph.random_circuit(60)
    whole, split = (evaluate(model, pairs, circuit, compute=Compute(memory=memory)) for memory in (None, 200_000))
    assert whole.faithfulness.mean == pytest.approx(split.faithfulness.mean, abs=1e-12)
    assert whole.completeness.error == pytest.approx(split.completeness.error, abs=1e-12)


def test_areas_are_trapezoids() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    sizes = (0, 40, 80, model.graph.n_edges)
    found = evaluate(model, pairs, [model.graph.random_circuit(size) for size in sizes], random_circuits=0)
    shares = [size / model.graph.n_edges for size in sizes]
    values = [item.recovered_logit_diff for item in found]
    area = sum((b - a) * (u + v) / 2 for a, b, u, v in zip(shares, shares[1:], values, values[1:], strict=False))
    assert found.cpr == pytest.approx(area)
    distance = [abs(1 - value) for value in values]
    assert found.cmd == pytest.approx(
        sum((b - a) * (u + v) / 2 for a, b, u, v in zip(shares, shares[1:], distance, distance[1:], strict=False))
    )
    with pytest.raises(GatewiseError, match="at least two sizes"):
        _ = Evaluations((found[0],)).cpr


def test_the_table_is_sorted_by_size_and_fits_80_columns() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    sizes = (60, 5, 100)
    names = [f"edge-pruning-ns+dn-{size}-of-my-own-task" for size in sizes]
    several = evaluate(model, pairs, [model.graph.random_circuit(size) for size in sizes], names=names)
    lines = str(several).splitlines()
    assert max(map(len, lines)) <= 80
    numbers = [line for line in lines if "%" in line]
    assert [int(line.split("%")[0].split()[-2]) for line in numbers] == sorted(sizes)
    text = "".join(line[: lines[1].index("edges") - 2].strip() for line in lines)
    assert all(name in text for name in names)  # folded, never cut
    assert "NaN" not in str(several)


def test_one_evaluation_is_a_sentence_with_the_interval_of_what_is_kept() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    found = evaluate(model, pairs, model.graph.random_circuit(60), names=["mine"])
    share = found.logit_diff_interval
    assert share.value == pytest.approx(found.recovered_logit_diff)
    assert share.low <= share.value <= share.high
    assert f"mine: 60 of {model.graph.n_edges} edges keep {share.value:.0%}" in repr(found).replace("-0%", "0%")
    table = found.to_frame()
    per_pair = (
        table["circuit_logit_diff"] - table["empty_logit_diff"],
        table["full_logit_diff"] - table["empty_logit_diff"],
    )
    assert share.value == pytest.approx(per_pair[0].sum() / per_pair[1].sum())


def test_areas_of_random_circuits_stand_beside() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    drawn = [model.graph.random_circuit(size, seed=0) for size in (60, 100)]
    found = evaluate(model, pairs, drawn, random_circuits=1)  # the random circuits beside them have the same seed
    assert found.areas_by_chance == pytest.approx((found.cpr, found.cmd))
