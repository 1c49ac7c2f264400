"""EAP and EAP-IG against the textbook computation, against the dense engine, and on models whose answer is known."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from small_models import ARCHITECTURES, random_pairs, small_model
from torch import Tensor

from gatewise.compute import Compute
from gatewise.engine import last_logits
from gatewise.engine.forward.dense import DenseEngine
from gatewise.engine.running import dense_mask
from gatewise.engine.runs.activations import both_runs
from gatewise.engine.runs.batches import bytes_needed
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.methods import Eap, EapIg, discover, discover_all, score_edges
from gatewise.methods.eap import combined
from gatewise.models.components import Attention
from gatewise.models.layout import Layout
from gatewise.models.model import Model
from gatewise.models.synthetic.logic_model import LogicGate, logic_model, synthetic_model, synthetic_pairs
from gatewise.tasks.pairs import Pairs

DIRECTIONS = ("ns", "dn")


def run_with_leaves(model: Model, tokens: Tensor, pair: Pairs, mix: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """One prompt, every port reading through a tensor of its own: all outputs [sender, position, d], and the logit
    difference's gradient at every port [port, position, d]. `mix`: input embeddings to start from instead of the
    prompt's."""
    graph, length = model.graph, len(tokens)
    layout = Layout(torch.tensor([length]), length, 0, model.dtype)
    out = model.embed(tokens[None], torch.arange(length)[None])
    outputs = [out]
    current = out.sum(0) if mix is None else mix
    residuals = {len(graph.sublayers[0].nodes): current}
    leaves, written = [], len(graph.sublayers[0].nodes)
    for sublayer, spec in zip(model.sublayers, graph.sublayers[1:-1], strict=True):
        leaves.append(torch.zeros(len(spec.ports), 1, length, model.d_model, dtype=model.dtype, requires_grad=True))
        x = residuals[spec.reads] + leaves[-1]
        out = sublayer(x, layout) if isinstance(sublayer, Attention) else sublayer(x)
        outputs.append(out.detach())
        current = current + out.sum(0) + (0 if sublayer.bias is None else sublayer.bias)
        written += len(spec.nodes)
        residuals[written] = current
    leaves.append(torch.zeros(1, 1, length, model.d_model, dtype=model.dtype, requires_grad=True))
    logit_diff = pair.logit_diff(model.unembed((current + leaves[-1][0])[:, -1])).sum()
    gradients = torch.autograd.grad(logit_diff, leaves)
    return torch.cat(outputs)[:, 0], torch.cat(gradients)[:, 0]


def textbook(model: Model, pairs: Pairs, direction: str = "ns", steps: int | None = None) -> Tensor:
    """Scores of all edges, example by example, in the words of the definition. `steps`: EAP-IG's."""
    total = torch.zeros(len(model.graph.ports), len(model.graph.senders), dtype=torch.float64)
    for row in range(len(pairs)):
        pair, length = pairs[row : row + 1], int(pairs.lengths[row])
        sides = {"ns": pairs.clean[row, -length:], "dn": pairs.corrupted[row, -length:]}
        outputs, gradients = {}, {}
        for name, tokens in sides.items():
            outputs[name], gradients[name] = run_with_leaves(model, tokens, pair)
        gradient = gradients[direction]
        if steps is not None:
            sources = len(model.graph.sublayers[0].nodes)
            clean, corrupted = (outputs[name][:sources].sum(0)[None] for name in DIRECTIONS)
            starts = [corrupted + k / steps * (clean - corrupted) for k in range(1, steps + 1)]
            gradient = sum(run_with_leaves(model, sides["ns"], pair, z)[1] for z in starts) / steps  # type: ignore
        difference = outputs["ns"] - outputs["dn"]  # what clean content adds to the logit difference
        total += torch.einsum("rpd,upd->ru", gradient.double(), difference.double())
    return model.graph.vector(total / len(pairs))


def assert_close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Relative to the largest score."""
    assert float((found.double() - expected.double()).abs().max()) <= tolerance * float(expected.abs().max())


def answers(pairs: Pairs) -> Pairs:
    """The same pairs with a probability logit difference over several answers."""
    correct, incorrect = [[1, 2, 3], [4], [5, 6]], [[7], [8, 9], [10]]
    rows = range(len(pairs))
    clean, corrupted = ([t[i, -int(pairs.lengths[i]) :] for i in rows] for t in (pairs.clean, pairs.corrupted))
    return Pairs.from_tokens(clean, corrupted, correct=correct, incorrect=incorrect, difference="probability")  # type: ignore[arg-type]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_equals_the_textbook(architecture: str, dtype: torch.dtype, tolerance: float) -> None:
    model, pairs = small_model(architecture, dtype=dtype), random_pairs()
    for direction in DIRECTIONS:
        found = score_edges(model, pairs, "eap", direction).values  # type: ignore[arg-type]
        assert found.dtype == dtype
        assert_close(found, textbook(model, pairs, direction), tolerance)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_integrated_equals_the_textbook(architecture: str) -> None:
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs()
    for steps in (3, 8, 17):
        found = score_edges(model, pairs, EapIg(steps=steps)).values
        assert_close(found, textbook(model, pairs, steps=steps), 1e-10)


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma3"])
def test_merged_ports_and_other_logit_diffs(architecture: str) -> None:
    model, pairs = small_model(architecture, dtype=torch.float64, qkv="merged"), answers(random_pairs())
    for direction in DIRECTIONS:
        found = score_edges(model, pairs, direction=direction).values  # type: ignore[arg-type]
        assert_close(found, textbook(model, pairs, direction), 1e-10)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_is_the_dense_engines_gradient_at_the_full_mask(architecture: str) -> None:
    """Removing an edge moves its mask from 1 to 0: the score is what the logit difference loses."""
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs()
    engine = DenseEngine(model, both_runs(model, pairs).intervention(model, "ns"))
    full = dense_mask(model, model.graph.full())
    gradient = engine.gradient(full, lambda logits: pairs.logit_diff(logits).mean())[1]
    assert_close(score_edges(model, pairs).values, model.graph.vector(gradient), 1e-6)  # it sums up in float32


@pytest.mark.parametrize(("method", "direction"), [("eap", "ns+dn"), ("eap-ig", "ns")])
def test_scores_do_not_depend_on_batches(method: str, direction: str) -> None:
    model = small_model("llama", dtype=torch.float64)
    pairs = random_pairs(lengths=(9, 4, 7, 9, 3), same=(8, 1, 3, 5, 2))
    whole = score_edges(model, pairs, method, direction)  # type: ignore[arg-type]
    for examples in (1, 2, 3):
        memory = examples * bytes_needed(model, 1, 8, 9, gradient=True)
        split = score_edges(model, pairs, method, direction, compute=Compute(memory=memory))  # type: ignore[arg-type]
        assert_close(split.values, whole.values, 1e-12)
    twice = Pairs.from_tokens(  # type: ignore[misc]
        *(
            [row[-n:] for row, n in zip(side, pairs.lengths, strict=True)] * 2
            for side in (pairs.clean, pairs.corrupted)
        ),
        correct=pairs.correct.tolist() * 2,
        incorrect=pairs.incorrect.tolist() * 2,
    )
    assert_close(score_edges(model, twice, method, direction).values, whole.values, 1e-12)  # type: ignore[arg-type]


def test_both_directions_are_combined() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    ns, dn, both = (score_edges(model, pairs, direction=d).values for d in ("ns", "dn", "ns+dn"))
    torch.testing.assert_close(both, ns + dn)
    largest = score_edges(model, pairs, Eap(combine="max"), "ns+dn").values
    assert torch.equal(largest, torch.where(ns.abs() >= dn.abs(), ns, dn))
    assert combined(torch.tensor([[1.0, -3.0, 2.0], [-1.0, 2.0, -4.0]]), "max").tolist() == [1.0, -3.0, -4.0]


def test_dn_is_ns_on_swapped_pairs_with_the_difference_turned() -> None:
    model, pairs = small_model("qwen2", dtype=torch.float64), random_pairs()
    assert_close(score_edges(model, pairs.swapped()).values, -score_edges(model, pairs, direction="dn").values, 1e-12)


def test_scores_of_a_linear_model_add_up() -> None:
    """Through every cut of a linear model flows the whole difference of the logit differences, in either direction."""
    first = [LogicGate("B1", "ADDER", ("A1", "A2")), LogicGate("B2", "ADDER", ("A2", "A3"))]
    layers = [first, [LogicGate("C", "ADDER", ("B1", "B2", "A3"))]]
    for model in (
        synthetic_model("adder"),
        logic_model("synthetic:sums", {"A1": 1.0, "A2": 0.5, "A3": -2.0}, layers, "C"),
    ):
        pairs, graph = synthetic_pairs(3), model.graph
        clean, corrupted = (pairs.logit_diff(last_logits(model, pairs, side)).mean() for side in ("clean", "corrupted"))
        for method, direction in (("eap", "ns"), ("eap", "dn"), ("eap-ig", "ns")):
            matrix = graph.matrix(score_edges(model, pairs, method, direction).values)  # type: ignore[arg-type]
            torch.testing.assert_close(matrix[graph.ports.index("logits")].sum(), clean - corrupted)
            sources = matrix[:, : len(graph.sublayers[0].nodes)]
            torch.testing.assert_close(sources.sum(), clean - corrupted)


@pytest.mark.parametrize(
    ("gate", "direction", "found"),
    [
        ("and", "ns", True),
        ("and", "dn", False),
        ("or", "ns", False),
        ("or", "dn", True),
        ("adder", "ns", True),
        ("adder", "dn", True),
    ],
)
def test_the_papers_table_on_single_gates(gate: str, direction: str, found: bool) -> None:
    model = synthetic_model(gate)
    circuit = discover(model, synthetic_pairs(2), "eap", direction, threshold=0.1)  # type: ignore[arg-type]
    gate_edges = {"A1->B", "A2->B"} if found else set()
    assert set(circuit.edges) == {"B->logits", *gate_edges}
    assert set(discover(model, synthetic_pairs(2), "eap", "ns+dn", threshold=0.1).edges) == {
        "A1->B",
        "A2->B",
        "B->logits",
    }


def test_several_nodes_in_a_sublayer() -> None:
    model, pairs = synthetic_model("combined"), synthetic_pairs()
    gates = {"ns": ["A1->B1", "A2->B1"], "dn": ["A3->B2", "A4->B2"]}
    for direction, edges in gates.items():
        circuit = discover(model, pairs, "eap", direction, threshold=0.5)  # type: ignore[arg-type]
        assert set(circuit.edges) == {*edges, "B1->C", "B2->C", "C->logits"}
        assert_close(circuit.scores, textbook(model, pairs, direction), 1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("architecture", ["gpt2", "gemma2"])
def test_integration_is_complete_at_the_input(architecture: str) -> None:
    """With all edges kept, the gradient at the input is the sum of those at all ports, so its edges' scores integrate
    to the difference of the logit differences; the error falls like 1 / steps."""
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs()
    truth = pairs.logit_diff(last_logits(model, pairs)) - pairs.logit_diff(last_logits(model, pairs, "corrupted"))
    errors = []
    for steps in (150, 300):
        scores = model.graph.matrix(score_edges(model, pairs, EapIg(steps=steps)).values)
        errors.append(abs(float(scores[:, 0].sum() - truth.mean())))
    assert errors[1] < 0.02 * float(truth.abs().mean())
    assert errors[1] < 0.6 * errors[0]


def test_one_step_of_integration_is_ns() -> None:
    model, pairs = small_model("neox"), random_pairs()
    assert torch.equal(score_edges(model, pairs, EapIg(steps=1)).values, score_edges(model, pairs).values)


def test_sizes_are_exact_and_nested() -> None:
    model, pairs = small_model("llama"), random_pairs()
    sizes = [1, 10, 50, model.graph.n_edges]
    circuits = discover_all(model, pairs, "eap", ["ns"], sizes=sizes)["ns"]
    assert [len(circuit) for circuit in circuits] == sizes
    for small, large in pairwise(circuits):
        assert small & large == small
    assert discover(model, pairs, "eap", edges=10) == circuits[1]
    best = circuits[1].scores.abs()  # type: ignore[union-attr]
    assert best[circuits[1].mask].min() >= best[~circuits[1].mask].max()


def test_ties_are_cut_to_the_exact_size() -> None:
    model = synthetic_model("combined")  # most edges score exactly 0
    for size in range(1, model.graph.n_edges + 1):
        assert len(discover(model, synthetic_pairs(), "eap", edges=size)) == size


def test_threshold_is_on_the_magnitude() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    scores = score_edges(model, pairs).values
    threshold = float(scores.abs().median())
    assert torch.equal(discover(model, pairs, "eap", threshold=threshold).mask, scores.abs() >= threshold)
    assert bool((scores[scores.abs() >= threshold] < 0).any())
    with pytest.warns(GatewiseWarning, match="keeps no edge"):
        assert len(discover(model, pairs, "eap", threshold=1e9)) == 0


def test_bfloat16_is_near_float32() -> None:
    """And its scores are accumulated in float32."""
    fine, pairs = small_model("llama"), random_pairs()
    coarse = small_model("llama", dtype=torch.bfloat16)
    expected, found = score_edges(fine, pairs).values, score_edges(coarse, pairs).values
    assert found.dtype == torch.float32
    assert float(torch.corrcoef(torch.stack([expected, found]))[0, 1]) > 0.99


def test_leaves_the_model_as_it_was() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    before = model.fingerprint
    first = score_edges(model, pairs, direction="ns+dn").values
    with torch.no_grad():  # the caller's mode does not matter
        assert torch.equal(score_edges(model, pairs, direction="ns+dn").values, first)
    assert small_model("gpt2").fingerprint == before
    assert all(p.grad is None and not p.requires_grad for p in model.hf.parameters())


def test_errors_say_the_way_out() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    with pytest.raises(GatewiseError, match="combine=mean: expected sum or max"):
        Eap(combine="mean")  # type: ignore[arg-type]
    for steps in (0, -1, 2.5, True):
        with pytest.raises(GatewiseError, match="whole number"):
            score_edges(model, pairs, EapIg(steps=steps))  # type: ignore[arg-type]
    for direction in ("dn", "ns+dn"):
        with pytest.raises(GatewiseError, match="method='eap'"):
            score_edges(model, pairs, "eap-ig", direction)
    with pytest.raises(GatewiseError, match="Raise it"):
        score_edges(model, pairs, compute=Compute(memory="1kB"))
    with torch.no_grad():  # token 3 occurs in the last pair only
        model.hf.transformer.wte.weight[3] = 1e30
    odd = Pairs.from_tokens([[1, 2], [1, 3]], [[2, 2], [2, 2]], correct=[4, 4], incorrect=[5, 5])
    with pytest.raises(GatewiseError, match="NaN or infinite scores on examples 0 to 1"):
        score_edges(model, odd)
