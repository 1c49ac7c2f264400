"""Graph: counts of the literature, EAP-IG's orders, names in every spelling."""

from __future__ import annotations

import pytest
import torch

from gatewise.circuits.graph import Graph
from gatewise.errors import GatewiseError

GPT2 = Graph.transformer(12, 12, 768)


def test_counts_of_the_literature() -> None:
    assert (len(GPT2.senders), len(GPT2.ports), GPT2.n_edges) == (157, 445, 32_491)
    assert Graph.transformer(12, 12, 768, qkv="merged").n_edges == 11_611
    assert Graph.transformer(30, 9, 576).n_edges == 123_211  # SmolLM2-135M
    assert Graph.transformer(24, 14, 896).n_edges == 179_749  # Qwen2.5-0.5B
    assert Graph.transformer(32, 32, 4096).n_edges == 1_592_881  # Llama-3.1-8B
    assert Graph.transformer(6, 8, 128).n_edges == 3_628


def test_indices_are_eap_igs() -> None:
    heads = 12
    for layer, head in ((0, 0), (5, 9), (11, 11)):
        assert GPT2.senders[1 + layer * (heads + 1) + head] == f"a{layer}.h{head}"
        assert GPT2.senders[1 + layer * (heads + 1) + heads] == f"m{layer}"
        for kind, letter in enumerate("qkv"):
            assert GPT2.ports[layer * (3 * heads + 1) + kind * heads + head] == f"a{layer}.h{head}<{letter}>"
        assert GPT2.ports[layer * (3 * heads + 1) + 3 * heads] == f"m{layer}"
    assert GPT2.ports[-1] == "logits"


def construction_order(layers: int, heads: int, parallel: bool) -> list[str]:
    """EAP-IG's order: per layer, for each sender, for each head q, k, v; then the MLP; at the end the logits."""
    senders, edges = ["input"], []
    for layer in range(layers):
        ports = [f"a{layer}.h{head}<{kind}>" for head in range(heads) for kind in "qkv"]
        written = [f"a{layer}.h{head}" for head in range(heads)]
        if parallel:
            edges += [f"{s}->{p}" for s in senders for p in [*ports, f"m{layer}"]]
            senders = [*senders, *written]
        else:
            edges += [f"{s}->{p}" for s in senders for p in ports]
            senders = [*senders, *written]
            edges += [f"{s}->m{layer}" for s in senders]
        senders.append(f"m{layer}")
    return edges + [f"{s}->logits" for s in senders]


@pytest.mark.parametrize("parallel", [False, True])
def test_edges_are_in_order_of_construction(parallel: bool) -> None:
    graph = Graph.transformer(3, 2, 8, parallel=parallel)
    assert list(graph.edges) == construction_order(3, 2, parallel)
    assert [graph.edges[i] for i in range(graph.n_edges)] == list(graph.edges)
    assert all(graph.find(name) == i for i, name in enumerate(graph.edges))


def test_parallel_mlp_does_not_read_its_own_layer() -> None:
    graph = Graph.transformer(2, 2, 8, parallel=True)
    assert graph.find("a1.h0->m1") is None
    assert graph.find("a0.h0->m1") is not None


@pytest.mark.parametrize("spelling", ["a5.h9->a9.h6<q>", "a5.9->a9.6<q>", "A5.9->A9.6.q", "a5.h9->a9.h6.q"])
def test_spellings(spelling: str) -> None:
    assert GPT2.edges[GPT2.index(spelling)] == "a5.h9->a9.h6<q>"
    assert spelling in GPT2.edges


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a5.h9", "no '->'"),
        ("a5.h99->m8", "no sender 'a5.h99'"),
        ("a5.h9->m88", "no port 'm88'"),
        ("a5.h9->a9.h6", "no port 'a9.h6'"),
        ("a9.h0->a5.h6<q>", "writes after"),
    ],
)
def test_unknown_edges_say_why(name: str, says: str) -> None:
    assert name not in GPT2.edges
    with pytest.raises(GatewiseError, match=says):
        GPT2.index(name)


def test_matrix_and_vector_are_inverse() -> None:
    values = torch.rand(2, GPT2.n_edges)
    matrix = GPT2.matrix(values)
    assert torch.equal(GPT2.vector(matrix), values)
    assert int((matrix != 0).sum()) == int((values != 0).sum())


def test_layered_graph_of_a_logic_model() -> None:
    graph = Graph.layered(["A1", "A2"], [["B"]], 3)
    assert list(graph.edges) == ["A1->B", "A2->B", "A1->logits", "A2->logits", "B->logits"]


def test_bad_requests() -> None:
    with pytest.raises(GatewiseError, match=r"graph has 32,491"):
        GPT2.random_circuit(40_000)
    with pytest.raises(GatewiseError, match="'split'"):
        Graph.transformer(2, 2, 8, qkv="both")  # type: ignore[arg-type]
