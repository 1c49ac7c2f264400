"""Verdicts that cannot be false: what a random model, an empty circuit or two pairs give is never marked as good."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from small_models import random_pairs, small_model
from transformers import GPT2Config, GPT2LMHeadModel

import gatewise as gw
from gatewise.evaluation.evaluations import Behaviour, Evaluation
from gatewise.evaluation.verdicts import against_chance, complete, doubts, faithful
from gatewise.models.model import Model
from gatewise.report import Report, make_report
from gatewise.report.headline import doubts as all_doubts
from gatewise.report.headline import facts, headline, trust
from gatewise.statistics import Measure
from gatewise.tasks import Task


@pytest.fixture(scope="module")
def tiny() -> Model:
    return gw.load_model("tiny")


def behaviour(logit_diff: float, accuracy: float, kl: float, *, error: float = 0.01) -> Behaviour:
    one = {
        "logit_diff": logit_diff,
        "accuracy": accuracy,
        "top_accuracy": accuracy,
        "kl_from_full": kl,
        "kl_to_full": kl,
    }
    return Behaviour(**{name: Measure(value, error) for name, value in one.items()})


def evaluation(
    circuit: Behaviour, complement: Behaviour | None = None, *, edges: int = 100, random_kl: float = 0.9
) -> Evaluation:
    """Of a model with a logit difference of 4 on a task that corruption takes away; by default all is well."""
    full, empty = behaviour(4.0, 1.0, 0.0), behaviour(0.0, 0.5, 1.0)
    chance = behaviour(0.1, 0.5, random_kl)
    complement = empty if complement is None else complement
    left = behaviour(3.9, 1.0, 0.01)
    return Evaluation("circuit", edges, 1000, edges, 32, circuit, complement, full, empty, 2, chance, left)


GOOD = evaluation(behaviour(3.8, 1.0, 0.05))


def assert_no_praise(found: Report) -> None:
    assert all_doubts(found)
    assert headline(found) == all_doubts(found)[0].text  # said first
    assert {remark.level for remark in (*facts(found), *trust(found))} <= {"note", "warning"}
    assert not any(remark.answer.startswith("yes") for remark in facts(found))


def test_a_good_circuit_is_called_good() -> None:
    half = evaluation(behaviour(2.0, 0.8, 0.5), behaviour(2.0, 0.9, 0.4), edges=50)
    assert doubts(GOOD) == []
    assert faithful(GOOD).level == complete([half, GOOD]).level == "good"
    assert faithful(GOOD).answer == "yes, 95%"
    chance = against_chance(GOOD)
    assert chance is not None
    assert chance.level == "good"


@pytest.mark.parametrize(
    ("circuit", "level", "said"),
    [
        (behaviour(13.2, 1.0, 0.05), "warning", "330% of the model's, beyond"),
        (behaviour(4.6, 1.0, 0.05), "good", "115% of the model's, beyond"),
        (behaviour(5.2, 1.0, 0.05), "note", "130% of the model's, beyond"),
        (behaviour(3.9, 0.0, 0.05), "warning", "0% of the prompts"),
        (behaviour(3.9, 1.0, 0.8), "warning", "20% by KL"),
        (behaviour(3.9, 1.0, 1.2), "warning", "further from the model than the empty circuit"),
        (behaviour(2.4, 1.0, 0.05), "note", "60% by logit difference"),
        (behaviour(3.9, 0.75, 0.05), "note", "50% by pairwise accuracy"),
    ],
)
def test_the_worst_of_the_three_decides(circuit: Behaviour, level: str, said: str) -> None:
    remark = faithful(evaluation(circuit))
    assert remark.level == level
    assert said in remark.text


def test_what_cannot_be_divided_is_no_praise() -> None:
    same = replace(GOOD, empty=GOOD.full)
    assert faithful(same).level == "warning"
    assert math.isnan(same.recovered_logit_diff)
    assert "no share" in faithful(same).text
    assert doubts(same)


def test_saturated_completeness_is_said() -> None:
    small = evaluation(behaviour(2.0, 0.8, 0.5), edges=25)
    remark = complete([small, GOOD])
    assert remark.level == "note"
    assert remark.answer == "100%, saturated"
    assert remark.text.startswith("Saturated: removing 25 edges")
    assert complete([GOOD]).level == "note"  # one size cannot tell
    broken = evaluation(GOOD.circuit, behaviour(0.0, 0.5, 1.5))
    half = evaluation(behaviour(2.0, 0.8, 0.5), behaviour(2.0, 0.9, 0.4), edges=50)
    assert complete([half, broken]).level == "note"
    assert "this is breakage" in complete([half, broken]).text
    kept = evaluation(GOOD.circuit, behaviour(2.0, 0.9, 0.9))
    assert complete([half, kept]).level == "note"
    assert "50% of the logit difference is left" in complete([half, kept]).text


def test_more_than_chance_is_not_enough() -> None:
    levels = [against_chance(evaluation(behaviour(3.8, 1.0, 0.05), random_kl=kl)) for kl in (0.9, 0.09, 0.06, 0.01)]
    assert [one.level for one in levels if one] == ["good", "note", "warning", "warning"]
    assert against_chance(replace(GOOD, random_circuit=None)) is None


def test_a_circuit_without_a_path(tiny: Model) -> None:
    test = gw.task("ioi", tiny, examples=8).test
    circuit = tiny.graph.circuit(["a0.h3->m1", "m3->logits"])
    one = gw.evaluate(tiny, test, circuit, random_circuits=0)
    assert one.on_path == 0
    assert one.circuit == one.empty
    assert "None of the 2 edges lies on a path" in doubts(one)[0].text
    assert faithful(one).level == "warning"
    assert "no edge" in doubts(gw.evaluate(tiny, test, tiny.graph.empty(), random_circuits=0))[0].text


@pytest.mark.parametrize("architecture", ["gemma2", "gpt2"])
def test_random_models(architecture: str) -> None:
    model = small_model(architecture)
    train, test = (random_pairs(seed, lengths=(6,) * 16) for seed in (0, 1))
    found = make_report(model, Task("pairs", train, test, seed=0, bos=False), edges=60, random_circuits=1, examples=1)
    assert_no_praise(found)


@pytest.mark.parametrize("task", ["ioi", "gt", "sa"])
def test_random_weights_on_real_tasks(tiny: Model, task: str) -> None:
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=len(tiny.tokenizer), n_embd=32, n_layer=2, n_head=4, n_positions=64)
    model = gw.load_model(GPT2LMHeadModel(config), tokenizer=tiny.tokenizer)
    made = gw.task(task, model, examples=16)
    circuit = gw.discover(model, made.train, edges=60)
    assert doubts(gw.evaluate(model, made.test, circuit, random_circuits=0))


def test_a_task_the_model_cannot_do(tiny: Model) -> None:
    made = gw.task("sa", tiny, examples=8)
    wrong = [replace(pairs, correct=pairs.incorrect, incorrect=pairs.correct) for pairs in (made.train, made.test)]
    found = make_report(tiny, Task("backwards", wrong[0], wrong[1], 0, True), edges=40, random_circuits=1, examples=1)
    assert_no_praise(found)
    assert "cannot do this task: it prefers the correct answer on only 0%" in headline(found)


def test_two_pairs(tiny: Model) -> None:
    found = make_report(tiny, gw.task("ioi", tiny, examples=2), edges=40, random_circuits=1, examples=1)
    assert_no_praise(found)
    assert "too few pairs: 2 to search on and 2 to test on" in headline(found).lower()


def test_single_examples_have_the_mean_of_the_whole(tiny: Model) -> None:
    test = gw.task("gt", tiny, examples=8).test
    one = gw.evaluate(tiny, test, tiny.graph.random_circuit(900, seed=0), random_circuits=0)
    assert len(one.per_example) == one.examples == 8
    for part in ("circuit", "complement", "full", "empty"):
        values = [row[f"{part}_logit_diff"] for row in one.per_example]
        assert sum(values) / 8 == pytest.approx(getattr(one, part).logit_diff.mean)
    logits = gw.run_circuit(tiny, test, tiny.graph.full())
    assert [row["full_logit_diff"] for row in one.per_example] == pytest.approx(
        test.logit_diff(logits).tolist(), abs=1e-4
    )
    assert "values" not in one.to_json()


def test_of_a_logically_complete_circuit_the_worse_side_counts() -> None:
    left, clean = behaviour(3.0, 0.9, 0.6), behaviour(4.0, 1.0, 1.0)
    one_sided = replace(GOOD, dn_circuit=left, dn_empty=clean, direction="ns")
    assert faithful(one_sided).answer == faithful(GOOD).answer
    assert "40% away by KL" in faithful(one_sided).text
    two_sided = replace(one_sided, direction="ns+dn")
    assert faithful(two_sided).answer == "partly, 40%"
    assert faithful(replace(one_sided, direction="ns|dn")).answer == "partly, 40%"
