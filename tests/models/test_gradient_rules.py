"""Gradient rules against a direct implementation: the reference, node by node, its forward rewritten with constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from reference import _Net, _sum
from small_models import ARCHITECTURES, random_pairs, small_model
from torch import Tensor

from gatewise.compute import Compute
from gatewise.engine import last_logits
from gatewise.engine.runs.batches import bytes_needed
from gatewise.errors import GatewiseError
from gatewise.methods import Eap, EapIg, discover, discover_all, score_edges
from gatewise.methods.parameters import parameters_of
from gatewise.models.components import Attention, Norm
from gatewise.models.gradient_rules import (
    CONSTANT_NORM,
    GIM,
    PLAIN,
    RELP,
    GradientRule,
    find_rule,
    gradient_rule,
    product,
)
from gatewise.models.layout import Layout
from gatewise.models.model import Model
from gatewise.models.transformer import activation
from gatewise.plan import forecast
from gatewise.tasks.pairs import Pairs

NAMES = ("plain", "constant-norm", "gim", "relp")
ATTENTION_IS_CONSTANT = GradientRule("ah", constant_norms=True, softmax_temperature=None, gate_share=0.5, secant=True)


class Twin(_Net):
    """The reference with one leaf per port, and parts of the forward held constant: what autograd then does is a rule.

    It knows rules by their names alone, and shares no code with the package's."""

    def __init__(self, model: Model, rule: str, start: Tensor | None = None) -> None:
        super().__init__(model)
        self.rule, self.start = rule, start
        self.leaves: dict[str, Tensor] = {}
        self.names = {id(layer): index for index, layer in enumerate(self.layers)}

    def embed(self, tokens: Tensor) -> Tensor:
        return super().embed(tokens) if self.start is None else self.start

    def leaf(self, port: str, x: Tensor) -> Tensor:
        self.leaves[port] = torch.zeros_like(x, requires_grad=True)
        return x + self.leaves[port]

    def root(self, x: Tensor, eps: float) -> Tensor:
        """The root mean square of a norm."""
        root = (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
        return root if self.rule == "plain" else root.detach()

    def norm(self, module: Any, x: Tensor) -> Tensor:
        if self.kind in ("gpt2", "gpt_neo", "gpt_neox", "opt"):
            centred = x - x.mean(-1, keepdim=True)
            return centred / self.root(centred, module.eps) * module.weight + module.bias
        eps = getattr(module, "variance_epsilon", None) or module.eps
        return x / self.root(x, eps) * (1 + module.weight if self.kind.startswith("gemma") else module.weight)

    def project(self, layer: Any, head: int, parts: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        name = f"a{self.names[id(layer)]}.h{head}"
        inputs: list[tuple[Tensor, ...]] = [
            (self.leaf(f"{name}<{kind}>", _sum(some)),) for kind, some in zip("qkv", parts, strict=True)
        ]
        q, k, v = super().project(layer, head, inputs)
        if self.rule == "gim":
            q, k, v = _passing(q, 1 / 4), _passing(k, 1 / 4), _passing(v, 1 / 2)
        return q, k, v

    def norm_over_heads(self, layer: Any, projected: list[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        if self.rule == "plain":
            return super().norm_over_heads(layer, projected)
        held = super().norm_over_heads(layer, [tuple(x.detach() for x in qkv) for qkv in projected])
        # What is a constant here is the factor that each number was multiplied by.
        return [
            tuple(x * (after / x).detach() for x, after in zip(qkv, normed, strict=True))
            for qkv, normed in zip(projected, held, strict=True)
        ]

    def attend(self, index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Values that single out columns give the pattern itself, which is then held, or not.
        pattern = super().attend(index, q, k, torch.eye(len(v), dtype=v.dtype))
        if self.rule == "ah":
            pattern = pattern.detach()
        if self.rule == "gim":
            scores = _scores_of(self, index, q, k)
            flat = (scores.detach() / 2).masked_fill(pattern.detach() == 0, -torch.inf).softmax(-1)
            linear = flat * (scores - (flat * scores).sum(-1, keepdim=True))
            pattern = pattern.detach() + linear - linear.detach()
        return pattern @ v

    def after_attention(self, layer: Any, share: Tensor, shares: list[Tensor]) -> Tensor:
        if not self.kind.startswith(("gemma", "olmo2")):
            return share
        norm = layer.post_attention_layernorm
        eps = getattr(norm, "variance_epsilon", None) or norm.eps
        weight = norm.weight if self.kind == "olmo2" else 1 + norm.weight
        return share / self.root(_sum(shares), eps) * weight

    def act(self, function: Any, z: Tensor) -> Tensor:
        return z * (function(z) / z).detach() if self.rule in ("relp", "ah") else function(z)

    def mlp(self, layer: Any, parts: tuple[Tensor, ...]) -> Tensor:
        x = self.leaf(f"m{self.names[id(layer)]}", _sum(parts))
        if self.kind in ("gpt2", "gpt_neo", "gpt_neox", "opt"):
            norm, first, function, second = {
                "gpt2": lambda: (layer.ln_2, layer.mlp.c_fc, layer.mlp.act, layer.mlp.c_proj),
                "gpt_neo": lambda: (layer.ln_2, layer.mlp.c_fc, layer.mlp.act, layer.mlp.c_proj),
                "gpt_neox": lambda: (
                    layer.post_attention_layernorm,
                    layer.mlp.dense_h_to_4h,
                    layer.mlp.act,
                    layer.mlp.dense_4h_to_h,
                ),
                "opt": lambda: (layer.final_layer_norm, layer.fc1, layer.activation_fn, layer.fc2),
            }[self.kind]()
            into, out = (first.weight, second.weight) if self.kind == "gpt2" else (first.weight.T, second.weight.T)
            return self.act(function, self.norm(norm, x) @ into + first.bias) @ out
        gemma, mlp = self.kind.startswith("gemma"), layer.mlp
        if self.kind != "olmo2":
            x = self.norm(layer.pre_feedforward_layernorm if gemma else layer.post_attention_layernorm, x)
        if self.kind == "phi3":
            gate, up = (x @ mlp.gate_up_proj.weight.T).chunk(2, dim=-1)
        else:
            biases = [0 if linear.bias is None else linear.bias for linear in (mlp.gate_proj, mlp.up_proj)]
            gate, up = x @ mlp.gate_proj.weight.T + biases[0], x @ mlp.up_proj.weight.T + biases[1]
        if self.rule in ("gim", "relp", "ah"):
            gate, up = _passing(gate, 1 / 2), _passing(up, 1 / 2)
        function = mlp.activation_fn if self.kind == "phi3" else mlp.act_fn
        out = self.act(function, gate) * up @ mlp.down_proj.weight.T
        return self.norm(layer.post_feedforward_layernorm, out) if gemma or self.kind == "olmo2" else out

    def unembed(self, x: Tensor) -> Tensor:
        return super().unembed(self.leaf("logits", x))

    def attribute(self, tokens: Tensor, pair: Pairs) -> tuple[Tensor, dict[str, Tensor]]:
        """Outputs of all nodes [sender, position, d], and the logit difference's gradient at every port."""
        graph = self.model.graph
        with torch.enable_grad():
            outputs, logits = self.run(tokens, set(graph.edges), None)
            gradients = torch.autograd.grad(
                pair.logit_diff(logits[None]).sum(), list(self.leaves.values()), materialize_grads=True
            )
        return torch.stack([outputs[node].detach() for node in graph.senders]), dict(
            zip(self.leaves, gradients, strict=True)
        )


def _passing(x: Tensor, share: float) -> Tensor:
    """x, of whose gradient a share passes."""
    return share * x + (1 - share) * x.detach()


def _scores_of(net: _Net, index: int, q: Tensor, k: Tensor) -> Tensor:
    """Attention scores, written out again; what lies in the future or behind the window does not matter."""
    rotary = net.kind not in ("gpt2", "gpt_neo", "opt")
    if net.kind == "smollm3":
        rotary = bool(net.config.no_rope_layers[index])
    if rotary:
        q, k = net.rotate(q, index), net.rotate(k, index)
    size = net.config.query_pre_attn_scalar if net.kind.startswith("gemma") else q.shape[-1]
    scores = q @ k.T * (1.0 if net.kind == "gpt_neo" else size**-0.5)
    cap = net.config.attn_logit_softcapping if net.kind == "gemma2" else None
    return torch.tanh(scores / cap) * cap if cap else scores


def directly(
    model: Model, pairs: Pairs, rule: str, direction: str = "ns", steps: int | None = None, path: bool = False
) -> Tensor:
    """Scores of all edges, example by example, in the words of the definitions."""
    graph = model.graph
    total = torch.zeros(len(graph.ports), len(graph.senders), dtype=torch.float64)

    def add(gradients: dict[str, Tensor], difference: Tensor, weight: float = 1.0) -> None:
        for r, port in enumerate(graph.ports):
            at = difference[:, -1] if port == "logits" else difference
            total[r] += weight * (at * gradients[port]).flatten(1).sum(dim=1)

    for row in range(len(pairs)):
        pair, length = pairs[row : row + 1], int(pairs.lengths[row])
        clean, corrupted = pairs.clean[row, -length:], pairs.corrupted[row, -length:]
        sides = {"ns": Twin(model, rule).attribute(clean, pair), "dn": Twin(model, rule).attribute(corrupted, pair)}
        whole = sides["ns"][0] - sides["dn"][0]  # positive: the clean content helps
        if steps is None:
            add(sides[direction][1], whole)
            continue
        before = sides["dn"][0]
        first, last = before[0], sides["ns"][0][0]
        for step in range(1, steps + 1):
            outputs, gradients = Twin(model, rule, first + step / steps * (last - first)).attribute(clean, pair)
            add(gradients, outputs - before if path else whole, 1.0 if path else 1 / steps)
            before = outputs
    return graph.vector(total / len(pairs))


def assert_close(scores: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    """Relative to the largest score."""
    assert float((scores.double() - expected).abs().max()) <= tolerance * float(expected.abs().max())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_rule_is_what_it_says_in_both_directions(architecture: str) -> None:
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs(lengths=(6, 5))
    rules: dict[str, Any] = {**{name: name for name in NAMES}, "ah": ATTENTION_IS_CONSTANT}
    for name, rule in rules.items():
        for direction in ("ns", "dn"):
            scores = score_edges(model, pairs, Eap(rule=rule), direction).values
            assert_close(scores, directly(model, pairs, name, direction))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_integrated_and_along_the_path(architecture: str) -> None:
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs(lengths=(6, 5))
    for rule in ("plain", "gim"):
        for path in (False, True):
            scores = score_edges(model, pairs, EapIg(steps=3, path=path, rule=rule)).values
            assert_close(scores, directly(model, pairs, rule, steps=3, path=path))


@pytest.mark.parametrize("architecture", ["gpt2", "olmo2"])
def test_the_path_integral_is_complete(architecture: str) -> None:
    """Edges into the logits and edges from the input both carry the whole difference; the error is of 1 / steps."""
    model, pairs = small_model(architecture, dtype=torch.float64), random_pairs(lengths=(6, 5))
    truth = pairs.logit_diff(last_logits(model, pairs)) - pairs.logit_diff(last_logits(model, pairs, "corrupted"))
    errors = []
    for steps in (75, 300):
        scores = model.graph.matrix(score_edges(model, pairs, EapIg(steps=steps, path=True)).values)
        sums = torch.stack([scores[-1].sum(), scores[:, 0].sum()])  # of the last port, the logits; of the input
        errors.append((sums - truth.mean()).abs() / truth.abs().mean())
    assert bool((errors[1] < 0.02).all())
    assert bool((errors[1] < 0.3 * errors[0]).all())
    whole = model.graph.matrix(score_edges(model, pairs, EapIg(steps=300)).values)
    assert abs(float(whole[-1].sum() - truth.mean())) > 0.05 * float(truth.abs().mean())  # EAP-IG is not, at the logits


def test_one_step_along_the_path_is_ns() -> None:
    model, pairs = small_model("llama", dtype=torch.float64), random_pairs()
    for rule in NAMES:
        one_step = score_edges(model, pairs, EapIg(steps=1, path=True, rule=rule))  # type: ignore[arg-type]
        assert_close(one_step.values, score_edges(model, pairs, Eap(rule=rule)).values, 1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma2", "olmo2"])
def test_what_the_model_computes_stays_to_the_last_bit(architecture: str, dtype: torch.dtype) -> None:
    model = small_model(architecture, dtype=dtype)
    layout = Layout(torch.tensor([5]), 5, 0, dtype)
    start = model.embed(torch.tensor([[3, 4, 5, 6, 7]]), layout.positions())

    def run() -> list[Tensor]:
        x, outputs = start.sum(dim=0).requires_grad_(), []
        for index in range(len(model.sublayers)):
            outputs.append(model.run_sublayer(index, x[None], layout, None))
            x = x + outputs[-1].sum(dim=0)
        return [*outputs, model.unembed(x)]

    plain = run()
    for rule in (CONSTANT_NORM, GIM, RELP, ATTENTION_IS_CONSTANT):
        with gradient_rule(rule):
            assert all(torch.equal(a, b) for a, b in zip(run(), plain, strict=True))
        with gradient_rule(rule), torch.no_grad():  # and without gradients it is the same code
            assert not any(x.requires_grad for x in run()[:-1])


def test_a_rule_ends_with_its_block_even_if_that_fails() -> None:
    norm = Norm(torch.ones(4), None, 1e-5, center=False)
    x = torch.arange(1.0, 5.0, requires_grad=True)

    def slope() -> Tensor:
        return torch.autograd.grad(norm(x)[0], x)[0]

    plain = slope()
    slopes = []

    def fail() -> None:
        with gradient_rule(CONSTANT_NORM):
            slopes.append(slope())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert slopes[0][1:].abs().max() == 0  # the scale carries nothing to the other dimensions
    assert torch.equal(slope(), plain)
    assert plain[1:].abs().min() > 0


@pytest.mark.parametrize("architecture", ["gemma2", "olmo2"])
def test_a_norm_over_all_heads_is_constant_for_each_and_for_their_sum(architecture: str) -> None:
    attention = small_model(architecture, dtype=torch.float64).sublayers[0]
    assert isinstance(attention, Attention)
    size = (attention.n_heads, 1, 3, attention.out.shape[1])
    z = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    slopes = []
    for rule in (PLAIN, CONSTANT_NORM):
        with gradient_rule(rule):
            apart, together = attention.write(z).sum(dim=0), attention.write_sum(z)
        slopes.append(torch.autograd.grad(apart[..., 0].sum(), z)[0])
        torch.testing.assert_close(slopes[-1], torch.autograd.grad(together[..., 0].sum(), z)[0])
    assert not torch.allclose(slopes[0], slopes[1])


def test_slopes_at_zero_are_finite() -> None:
    """The line through 0 and a point has no slope where the point is 0; the limit from above is taken."""
    for module, slope in ((torch.nn.GELU(), 0.5), (torch.nn.SiLU(), 0.5), (torch.nn.ReLU(), 1.0)):
        z = torch.zeros(2, requires_grad=True)
        with gradient_rule(RELP):
            (gradient,) = torch.autograd.grad(activation(module)(z).sum(), z)
        torch.testing.assert_close(gradient, torch.full((2,), slope), atol=1e-5, rtol=0)


@pytest.mark.parametrize("method", [Eap(rule="gim"), Eap(rule="relp"), EapIg(rule="constant-norm", path=True)])
def test_rules_do_not_depend_on_batches_or_workers(method: Any) -> None:
    model = small_model("gemma3", dtype=torch.float64)
    pairs = random_pairs(lengths=(9, 4, 7, 9), same=(8, 1, 3, 5))
    directions = ("ns", "dn", "ns+dn") if method.directed else ("ns",)
    for direction in directions:
        whole = score_edges(model, pairs, method, direction).values  # type: ignore[arg-type]
        memory = bytes_needed(model, 2, 8, gradient=True)
        split = score_edges(model, pairs, method, direction, compute=Compute(memory=memory)).values  # type: ignore[arg-type]
        assert_close(split, whole, 1e-12)
    shared = score_edges(model, pairs, method, compute=Compute(memory=memory, workers=2)).values
    assert torch.equal(shared, score_edges(model, pairs, method, compute=Compute(memory=memory)).values)


def test_both_directions_add_up_by_every_rule() -> None:
    model, pairs = small_model("phi3"), random_pairs()
    for rule in NAMES:
        circuits = discover_all(model, pairs, Eap(rule=rule), ("ns", "dn", "ns+dn"), sizes=[20])  # type: ignore[arg-type]
        ns, dn, both = (circuits[direction][0].scores for direction in ("ns", "dn", "ns+dn"))
        torch.testing.assert_close(both, ns + dn)  # type: ignore[operator]


def test_bfloat16_is_near_float32_by_every_rule() -> None:
    fine, coarse, pairs = small_model("llama"), small_model("llama", dtype=torch.bfloat16), random_pairs()
    for rule in NAMES:
        expected, scores = (score_edges(model, pairs, Eap(rule=rule)).values for model in (fine, coarse))  # type: ignore[arg-type]
        assert scores.dtype == torch.float32
        assert float(torch.corrcoef(torch.stack([expected, scores]))[0, 1]) > 0.99


def test_stored_results_are_kept_apart_by_rule(tmp_path: Path) -> None:
    model, pairs, compute = small_model("gpt2"), random_pairs(), Compute(store=tmp_path)
    searches: list[Any] = [
        *(Eap(rule=rule) for rule in NAMES),  # type: ignore[arg-type]
        Eap(rule=GradientRule(softmax_temperature=3.0)),
        Eap(rule=Halved()),
        EapIg(),
        EapIg(path=True),
        EapIg(rule="gim"),
    ]
    first = [discover(model, pairs, method, edges=30, compute=compute) for method in searches]
    again = [discover(model, pairs, method, edges=30, compute=compute) for method in searches]
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.scores, b.scores)  # type: ignore[arg-type]
        assert a.provenance["time"] == b.provenance["time"]  # read, not computed again
    assert len({tuple(circuit.scores.tolist()) for circuit in first}) == len(first)  # type: ignore[union-attr]
    assert first[2].provenance["parameters"]["rule"] == "gim"
    assert first[4].provenance["parameters"]["rule"]["softmax_temperature"] == 3.0
    assert first[5].provenance["parameters"]["rule"]["name"].endswith("test_gradient_rules:Halved")


def test_cost_is_counted_before_the_work() -> None:
    """The path integral takes one product per step more than EAP-IG; rules take next to nothing."""
    work = {
        name: forecast("tiny", "ioi", method, examples=8).f
        for name, method in {"ig": EapIg(), "path": EapIg(path=True), "eap": Eap(), "gim": Eap(rule="gim")}.items()
    }
    assert work["ig"] < work["path"] < 1.5 * work["ig"]
    assert work["gim"] == pytest.approx(work["eap"], rel=0.02)


class Halved(GradientRule):
    """A rule of a user's own: half of every slope of an activation."""

    def activation(self, function: Any, z: Tensor) -> Tensor | None:
        return function(z) / 2


HALVED = Halved()


def test_a_rule_of_ones_own() -> None:
    """Half of every activation's slope halves what a single MLP passes on, and nothing else."""
    model, pairs = small_model("gpt2", dtype=torch.float64, layers=2), random_pairs()
    graph = model.graph
    plain, halved = (graph.matrix(score_edges(model, pairs, Eap(rule=rule)).values) for rule in ("plain", HALVED))
    last = graph.ports.index("m1")
    torch.testing.assert_close(halved[last], plain[last] / 2)
    torch.testing.assert_close(halved[-1], plain[-1])


def test_rules_by_name_and_from_modules() -> None:
    parameter = parameters_of(Eap())["rule"]
    assert parameter.parse("gim") == "gim"
    assert parameter.parse(GIM) is GIM
    assert find_rule("relp") is RELP
    named = Eap().with_parameters({"rule": f"{__name__}:HALVED"})
    assert named == Eap(rule=HALVED)
    assert GradientRule("plain") == PLAIN


def test_errors_say_the_way_out() -> None:
    with pytest.raises(GatewiseError, match="rule=grim: expected plain or constant-norm or gim or relp or a Gradient"):
        Eap(rule="grim")  # type: ignore[arg-type]
    with pytest.raises(GatewiseError, match=r"no_such_module:RULE.*cannot be imported"):
        Eap(rule="no_such_module:RULE")  # type: ignore[arg-type]
    with pytest.raises(GatewiseError, match="rule=torch:nn: expected plain"):
        Eap(rule="torch:nn")  # type: ignore[arg-type]
    with pytest.raises(GatewiseError, match="path=perhaps: expected true or false"):
        EapIg(path="perhaps")  # type: ignore[arg-type]
    wrong: list[dict[str, Any]] = [
        {"softmax_temperature": 0.0},
        {"gate_share": float("nan")},
        {"attention_share": "half"},
        {"secant": 1},
    ]
    for fields in wrong:
        with pytest.raises(GatewiseError, match=f"{next(iter(fields))} is .*; expected"):
            GradientRule(**fields)


def test_each_factor_of_a_product_gets_its_share() -> None:
    first, second = torch.tensor([2.0]), torch.tensor([3.0], requires_grad=True)
    with gradient_rule(GIM):
        y = product(first, second)
    assert y.item() == 6.0
    assert torch.autograd.grad(y, second)[0].item() == 1.0  # half of 2
