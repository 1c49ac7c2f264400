"""What the heads of a model do in the IOI task: published for GPT-2 small, measured for any other model.

*Published* are the 26 heads in seven classes of Wang et al. 2022 ("Interpretability in the Wild", figure 2).

*Measured* roles go by what a head attends to and by what it does to the logit difference (logit of the indirect object,
IO, minus that of the subject, S). S1 is the subject's first mention, S2 its second, END the last token. Attention is a
mean over examples; all thresholds are below, in `Criteria`.

- previous token: attention from every token to the one before it, over the IOI prompts or over random tokens.
- duplicate token: attention from a repeated token to its first occurrence, in excess of the same attention where the
  token is not repeated: from S2 to S1, clean prompt less corrupted one; or in random tokens A A less B A.
- induction: the same to the token *after* the first occurrence.
- name mover: attention from END to IO, and the edge head->logits carries logit difference: replacing it by the
  corrupted run's lowers the logit difference. *Negative* name mover: it raises the logit difference.
- S-inhibition: attention from END to S2, and the head acts through others: replacing all its edges but head->logits
  lowers the logit difference.

Effects are normalised: shares of the logit difference that the corruption takes away. A head that meets several
criteria gets the first of: name mover, negative name mover, S-inhibition, induction, duplicate token, previous token.
*Backup* name movers show only when name movers are ablated: no criterion here finds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.circuits.literature import GPT2_SMALL, Roles
from gatewise.engine.patching.exact_effects import exact_effects
from gatewise.engine.running import last_logits, run_circuits
from gatewise.engine.runs.activations import bases, lay_out, plain_run, prefix_of
from gatewise.engine.runs.batches import batches
from gatewise.models.components import Attention
from gatewise.models.model import Model
from gatewise.tasks.pairs import Pairs

ROLES = (
    "previous token",
    "duplicate token",
    "induction",
    "S-inhibition",
    "name mover",
    "backup name mover",
    "negative name mover",
)
_PRIORITY = ("name mover", "negative name mover", "S-inhibition", "induction", "duplicate token", "previous token")


@dataclass(frozen=True)
class Criteria:
    """Thresholds of the measured roles."""

    attention: float = 0.3  # to the token before, to a repetition, or from END to a name
    effect: float = 0.02  # share of the logit difference that the corruption takes away
    random_tokens: int = 24  # in the part that is repeated, if the model reads as many
    random_rows: int = 16


def is_gpt2_small(model: Model) -> bool:
    """Whether the published roles can be this model's: GPT-2's architecture with 12 layers of 12 heads."""
    kind = getattr(getattr(model.hf, "config", None), "model_type", "")
    return kind == "gpt2" and (model.graph.n_layers, model.graph.n_heads) == GPT2_SMALL


def heads_of(graph: Graph) -> list[str]:
    """All heads, in the order of the graph."""
    return [node for sublayer in graph.sublayers if sublayer.kind == "attention" for node in sublayer.nodes]


def measure_roles(model: Model, pairs: Pairs, criteria: Criteria | None = None) -> Roles:
    """The roles of those heads that meet the criteria above. `pairs`: of the task ioi."""
    criteria = criteria or Criteria()
    heads = heads_of(model.graph)
    attending = {
        role: [head for head, value in zip(heads, values.tolist(), strict=True) if value >= criteria.attention]
        for role, values in _attention_scores(model, pairs, criteria).items()
    }
    clean, corrupted = (
        pairs.logit_diff(last_logits(model, pairs, side)).double().mean() for side in ("clean", "corrupted")
    )
    lost = float(clean - corrupted)
    share = 1 / lost if lost > 0 else 0.0  # a model that cannot do the task has no effects to speak of
    effects = exact_effects(model, pairs, [f"{head}->logits" for head in heads]).logit_diff * share
    direct = dict(zip(heads, effects.tolist(), strict=True))
    indirect = _indirect_effects(model, pairs, attending["S-inhibition"], share)
    meeting = {  # heads that meet the criteria of each role
        **attending,
        "name mover": [head for head in attending["name mover"] if direct[head] >= criteria.effect],
        "negative name mover": [head for head in attending["name mover"] if -direct[head] >= criteria.effect],
        "S-inhibition": [head for head, effect in indirect.items() if effect >= criteria.effect],
    }
    roles = {head: role for role in reversed(_PRIORITY) for head in meeting[role]}
    return {head: roles[head] for head in heads if head in roles}


def attention_similarity(model: Model, pairs: Pairs) -> Tensor:
    """How alike two heads attend, from the second name to the end of the prompts, whatever it is for. [head, head]

    Correlation of their attention weights, less the mean of all heads at each place (so that attention to the first
    token, which most heads share, does not count).
    """
    of_batches = []
    for _, part in batches(model, pairs, share_prefix=False):
        start = int(part.first_difference.min())
        with torch.no_grad():
            layers = [weights[:, :, start:].flatten(1).double().cpu() for weights in attention_patterns(model, part)]
        of_batches.append(torch.cat(layers))
    patterns = torch.cat(of_batches, dim=1)
    patterns = patterns - patterns.mean(dim=0)
    patterns = patterns / patterns.norm(dim=1, keepdim=True).clamp(min=1e-12)
    similarity: Tensor = patterns @ patterns.T
    return similarity


def attention_patterns(model: Model, pairs: Pairs) -> Iterator[Tensor]:
    """For each layer, how the heads attend on the clean side. [head, example, query column, key column]

    The engine's own attention, gathering an identity matrix in place of values: what comes out are the weights.
    """
    layout = lay_out(model, pairs, share_prefix=False)
    run = plain_run(model, pairs.clean, layout, prefix_of(model, pairs.clean, layout))
    one_hot = torch.eye(layout.width, dtype=model.dtype, device=model.device)
    for sublayer, x in zip(model.sublayers, bases(model, run.outputs), strict=False):
        if isinstance(sublayer, Attention):
            q, k = (sublayer.project(kind, x[None], layout) for kind in ("q", "k"))
            yield sublayer.attend(q, sublayer.per_head(k), one_hot, layout, None)


@torch.no_grad()
def _attention_scores(model: Model, pairs: Pairs, criteria: Criteria) -> dict[str, Tensor]:
    """role -> [head of the model]"""
    prompts, random = _on_prompts(model, pairs), _on_random_tokens(model, pairs, criteria)
    scores = {role: torch.maximum(prompts[role], random[role]) for role in random}
    return {**prompts, **scores}


def _on_prompts(model: Model, pairs: Pairs) -> dict[str, Tensor]:
    second = pairs.first_difference
    first, indirect = ((pairs.clean == names[:, :1]).int().argmax(dim=1) for names in (pairs.incorrect, pairs.correct))
    last = torch.full_like(second, pairs.width - 1)
    columns = {
        "duplicate token": (second, first),
        "induction": (second, first + 1),
        "name mover": (last, indirect),
        "S-inhibition": (last, second),
    }
    clean = _mean_attention(model, pairs, columns)
    corrupted = _mean_attention(model, pairs.swapped(), columns)
    caused = {role: clean[role] - corrupted[role] for role in ("duplicate token", "induction")}
    return {**clean, **caused}


def _on_random_tokens(model: Model, pairs: Pairs, criteria: Criteria) -> dict[str, Tensor]:
    """Random tokens twice (A A), against other random tokens before them (B A)."""
    tokenizer = model.tokenizer
    special = set(tokenizer.all_special_ids) if tokenizer is not None else set()
    allowed = torch.tensor([token for token in range(model.vocabulary_size) if token not in special])
    start = [tokenizer.bos_token_id] if tokenizer is not None and pairs.begins_with(tokenizer.bos_token_id) else []
    longest = getattr(getattr(model.hf, "config", None), "max_position_embeddings", 2 * criteria.random_tokens)
    size = min(criteria.random_tokens, (longest - len(start)) // 2)
    generator = torch.Generator().manual_seed(0)
    shape, nothing = (criteria.random_rows, size), [int(allowed[0])] * criteria.random_rows
    a, b = (allowed[torch.randint(len(allowed), shape, generator=generator)].tolist() for _ in range(2))
    twice = [start + tokens + tokens for tokens in a]
    repeated = Pairs.from_tokens(twice, twice, nothing, nothing)
    other = Pairs.from_tokens([start + x + y for x, y in zip(b, a, strict=True)], twice, nothing, nothing)
    later = torch.arange(size) + size + len(start)
    columns = {
        "duplicate token": (later.expand(len(a), -1), (later - size).expand(len(a), -1)),
        "induction": (later[:-1].expand(len(a), -1), (later[1:] - size).expand(len(a), -1)),
    }
    on_a, on_b = (_mean_attention(model, side, columns) for side in (repeated, other))
    return {"previous token": on_a["previous token"], **{role: on_a[role] - on_b[role] for role in columns}}


def _mean_attention(
    model: Model, pairs: Pairs, columns_of_roles: Mapping[str, tuple[Tensor, Tensor]]
) -> dict[str, Tensor]:
    """Attention from columns to columns, [example] or [example, look], and to the token before. role -> [head]"""
    totals: dict[str, list[Tensor]] = {}
    for start, part in batches(model, pairs, share_prefix=False):
        rows = slice(start, start + len(part))
        dropped = pairs.width - part.width  # columns of padding that the batch does not have
        looks = {
            role: tuple(columns[rows].reshape(len(part), -1) - dropped for columns in from_and_to)
            for role, from_and_to in columns_of_roles.items()
        }
        columns = torch.arange(1, part.width)
        real = (columns - 1 >= (part.width - part.lengths)[:, None]).double()
        by_layer: dict[str, list[Tensor]] = {}
        example = torch.arange(len(part))[:, None]
        for weights in attention_patterns(model, part):
            weights = weights.double().cpu()
            for role, (source, target) in looks.items():
                by_layer.setdefault(role, []).append(weights[:, example, source, target].mean(dim=-1).sum(dim=-1))
            before = weights[:, :, columns, columns - 1] * real
            by_layer.setdefault("previous token", []).append((before.sum(dim=-1) / real.sum(dim=-1)).sum(dim=-1))
        for role, layers in by_layer.items():
            totals.setdefault(role, []).append(torch.cat(layers))
    return {role: torch.stack(parts).sum(dim=0) / len(pairs) for role, parts in totals.items()}


def _indirect_effects(model: Model, pairs: Pairs, heads: list[str], share: float) -> dict[str, float]:
    """Normalised effect of patching all edges of a head but that into the logits."""
    graph, full = model.graph, model.graph.full()
    circuits = [full]
    for head in heads:
        mask = full.mask.clone()
        mask[graph.edge_sender == graph.senders.index(head)] = False
        mask[graph.index(f"{head}->logits")] = True
        circuits.append(Circuit(graph, mask))
    logit_diffs = pairs.logit_diff(run_circuits(model, pairs, circuits)).double().mean(dim=-1)
    return dict(zip(heads, ((logit_diffs[0] - logit_diffs[1:]) * share).tolist(), strict=True))
