"""Every public call that takes a model, small, and what it gives as plain numbers and texts. For tests only."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from small_models import half
from torch import Tensor

import gatewise as gw
from gatewise.circuits.circuit import Circuit
from gatewise.circuits.graph import Graph
from gatewise.engine import last_logits, run_circuits
from gatewise.engine.metrics import Metric
from gatewise.evaluation.heads import attention, direct_contributions
from gatewise.evaluation.task_check import ability, check_task
from gatewise.gates.backups import add_backups, find_backups
from gatewise.gates.programs.prediction import predict
from gatewise.gates.reconciliation import other_removals, reconcile, try_removals
from gatewise.gates.testing.member_curve import member_curve
from gatewise.gates.testing.pair_tables import test_edge_pairs as edge_pair_tables
from gatewise.gates.testing.partners import edge_partners
from gatewise.gates.testing.replication import replicate
from gatewise.methods.acdc.method import Acdc
from gatewise.methods.edge_pruning.method import EdgePruning
from gatewise.methods.example_scores import score_examples
from gatewise.methods.ranking.method import Ranking
from gatewise.methods.smallest import smallest_circuits
from gatewise.models.model import Model
from gatewise.tasks import Task
from gatewise.tasks.pairs import Pairs

GROUPS = {"q": "<q>", "k": "<k>", "v": "<v>"}
_SECONDS = ("seconds", "provenance", "runtime", "elapsed", "compute", "loaded")  # of fields that are no numbers of ours


def _circuit(model: Model, task: Task) -> Circuit:
    return gw.discover(model, task, edges=60)


def _smallest(model: Model) -> Any:
    pairs = gw.task("ioi", model, examples=24).train
    smallest = smallest_circuits(model, pairs, faithfulness=0.3, edges=400)["ns"]
    return smallest.scan, smallest.circuit


def _reconciled(model: Model, task: Task) -> Any:
    noun, verb = gw.find_gates(model, task.train[:4], edges=40), gw.find_gates(model, task.train[4:], edges=40)
    removal = reconcile([noun], [verb])
    others = other_removals([noun], [verb], size=5)
    return try_removals(model, {"ioi": task.train[:4], "ioi (2)": task.train[4:]}, removal, others)


def own_metric(logits: Tensor, pairs: Pairs) -> Tensor:
    """A user's own metric, as the docs write it: it indexes logits by the pairs' answers."""
    probabilities = logits.softmax(dim=-1)
    answers = pairs.correct[:, :1].expand(*probabilities.shape[:-1], 1)
    return probabilities.gather(-1, answers)[..., 0]


CALLS: dict[str, Callable[[Model, Task], Any]] = {
    "fingerprint": lambda model, task: model.fingerprint,
    "task": lambda model, task: gw.task("sa", model, examples=4).train.fingerprint,
    "last_logits": lambda model, task: last_logits(model, task.train),
    "run_circuit": lambda model, task: gw.run_circuit(model, task.train, _circuit(model, task)),
    "run_circuit, mean ablation": lambda model, task: gw.run_circuit(
        model, task.train, _circuit(model, task), ablation="mean"
    ),
    "run_circuits": lambda model, task: run_circuits(model, task.train, [_circuit(model, task)] * 2, "dn"),
    "score_edges": lambda model, task: gw.score_edges(model, task).values,
    "score_edges, eap-ig": lambda model, task: gw.score_edges(model, task, "eap-ig").values,
    "score_edges, eap-ig on KL": lambda model, task: gw.score_edges(model, task, "eap-ig", metric="kl").values,
    "score_edges, own metric": lambda model, task: gw.score_edges(model, task, metric=own_metric).values,
    "score_edges, half": lambda model, task: gw.score_edges(model, task, metric=Metric("half", half)).values,
    "resample_circuit": lambda model, task: gw.resample_circuit(model, task, edges=50, resamples=20).inclusion,
    "specificity": lambda model, task: gw.specificity(
        model, {"ioi": task, "sa": gw.task("sa", model, examples=4)}, edges=60, random_circuits=1, text=False
    ),
    "score_examples": lambda model, task: score_examples(model, task).mean().values,
    "score_edges, zero": lambda model, task: gw.score_edges(model, task, ablation="zero").values,
    "score_edges, noise": lambda model, task: gw.score_edges(model, task, ablation="noise").values,
    "discover": lambda model, task: gw.discover(model, task, "eap", "ns+dn", edges=100),
    "discover, acdc": lambda model, task: gw.discover(model, task, "acdc", threshold=0.02),
    "discover, acdc dn": lambda model, task: gw.discover(model, task, "acdc", "dn", threshold=0.1),
    "discover, acdc, edges": lambda model, task: gw.discover(model, task.train[:4], Acdc(), edges=16),
    "discover, acdc, own metric": lambda model, task: gw.discover(
        model, task.train[:4], "acdc", threshold=0.1, metric=own_metric
    ),
    "discover, edge-pruning": lambda model, task: gw.discover(model, task, EdgePruning(steps=6), edges=100),
    "discover, edge-pruning, one mask": lambda model, task: gw.discover(
        model, task, EdgePruning(steps=4, draw="one"), "dn", edges=100
    ),
    "discover, ranking": lambda model, task: gw.discover(model, task, Ranking(steps=4), edges=100),
    "discover, ranking ns+dn": lambda model, task: gw.discover(model, task, Ranking(steps=3), "ns+dn", edges=100),
    "smallest_circuits": lambda model, task: _smallest(model),
    "discover_all": lambda model, task: gw.discover_all(model, task, sizes=(20, 40)),
    "find_gates": lambda model, task: gw.find_gates(model, task, edges=100),
    "evaluate": lambda model, task: gw.evaluate(model, task, [_circuit(model, task), model.graph.full()]),
    "ablate": lambda model, task: gw.ablate(model, task, ["a2.h0", "a3.h0"]),
    "attention": lambda model, task: attention(model, task.train, "a3.h0"),
    "direct_contributions": lambda model, task: direct_contributions(model, task.train, ["a3.h0", "m2"]),
    "ability": lambda model, task: ability(model, task.train),
    "check_task": lambda model, task: check_task(model, task),
    "exact_effects": lambda model, task: gw.exact_effects(model, task.train, range(0, 3600, 90)),
    "exact_effects, circuit": lambda model, task: gw.exact_effects(
        model, task.train, direction="dn", circuit=_circuit(model, task)
    ),
    "test_gate": lambda model, task: gw.test_gate(model, task.train, "a3.h0", GROUPS),
    "test_gates": lambda model, task: gw.test_gates(model, task.train, test=task.test, most=4),
    "test_edge_pairs": lambda model, task: edge_pair_tables(
        model, task.train, _circuit(model, task), of=gw.discover(model, task, edges=12)
    ),
    "replicate": lambda model, task: replicate(
        model, {"test": task.test}, [gw.test_gate(model, task.train, "a3.h0", GROUPS, confirm=False)]
    ),
    "edge_partners": lambda model, task: edge_partners(model, task.train, "m0->a3.h0<v>"),
    "member_curve": lambda model, task: member_curve(model, task.train, "m3", ["m0->m3", "a2.h0->m3", "m2->m3"]),
    "find_backups": lambda model, task: find_backups(model, task.train, ["a2.h0"]),
    "add_backups": lambda model, task: add_backups(model, task.train, _circuit(model, task), nodes=["a2.h0"]),
    "predict": lambda model, task: predict(
        model, task.train, {"a3.h0": GROUPS, "a2.h0": GROUPS}, test=task.test, subsets=12, fit_subsets=8
    ),
    "try_removals": _reconciled,
    "make_report": lambda model, task: gw.make_report(model, task, edges=60, examples=2),
}


def numbers_of(value: Any, path: str = "") -> Iterator[tuple[str, Tensor | str]]:
    """All numbers and texts of an outcome, each with the way to it; not how long it took or where it was made."""
    if isinstance(value, Tensor):
        yield path, value.detach().cpu().double()
    elif isinstance(value, (bool, str, type(None), Graph, Model)):
        yield path, repr(value) if isinstance(value, (bool, str, type(None))) else ""
    elif isinstance(value, (int, float)):
        yield path, torch.tensor(value, dtype=torch.float64)
    elif isinstance(value, Circuit):
        yield f"{path}.edges", " ".join(sorted(value.edges))
        yield from numbers_of(value.scores, f"{path}.scores")
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            if key not in _SECONDS:
                yield from numbers_of(entry, f"{path}.{key}")
    elif is_dataclass(value):
        for field in fields(value):
            if field.name not in _SECONDS:
                yield from numbers_of(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, (list, tuple, set, frozenset, range)) or hasattr(value, "__iter__"):
        for number, entry in enumerate(value):
            yield from numbers_of(entry, f"{path}[{number}]")
    else:
        yield path, repr(value)


def dies_once(logits: Tensor, pairs: Pairs) -> Tensor:
    """A metric whose first caller is killed, as by a system without memory; the file of STANDIN_KILLED says so."""
    flag = Path(os.environ["STANDIN_KILLED"])
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return pairs.logit_diff(logits)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process goes on")
