"""The built-in model `tiny` does the three tasks on prompts that it was not trained on, with depth and backups."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from types import ModuleType

import pytest
import torch

from gatewise.engine import last_logits, run_circuit, run_circuits
from gatewise.errors import GatewiseError
from gatewise.evaluation import check_task
from gatewise.gates import find_backups
from gatewise.models import load_model
from gatewise.models.model import Model
from gatewise.tasks import Pairs, task
from gatewise.tasks.encoding import Encoder
from gatewise.tasks.registry import RECIPES

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_tiny.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_tiny", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tiny() -> Model:
    return load_model("tiny")


@pytest.fixture(scope="module")
def indirect_objects(tiny: Model, script: ModuleType) -> Pairs:
    pairs: Pairs = script.held_out_pairs(RECIPES["ioi"], Encoder(tiny.tokenizer), 64)
    return pairs


def accuracy(model: Model, pairs: Pairs) -> float:
    return pairs.pairwise_accuracy(last_logits(model, pairs)).float().mean().item()


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("name", list(RECIPES))
def test_right_over_wrong_on_held_out_prompts(name: str, bos: bool, tiny: Model, script: ModuleType) -> None:
    pairs = script.held_out_pairs(RECIPES[name], Encoder(tiny.tokenizer, bos), 200)
    assert accuracy(tiny, pairs) >= 0.95


@pytest.mark.parametrize("name", list(RECIPES))
def test_the_tasks_as_users_get_them_raise_no_objection(name: str, tiny: Model) -> None:
    made = task(name, tiny)
    assert made.bos
    assert check_task(tiny, made) == []
    assert accuracy(tiny, made.test) >= 0.95


def test_after_a_third_name_either_name_may_follow(tiny: Model) -> None:
    pairs = task("ioi", tiny).train
    probabilities = last_logits(tiny, pairs, side="corrupted").softmax(dim=-1)
    correct, incorrect = (probabilities.gather(1, answers)[:, 0] for answers in (pairs.correct, pairs.incorrect))
    assert abs(correct.mean() - incorrect.mean()) < 0.2
    assert (torch.maximum(correct, incorrect) == probabilities.amax(dim=1)).float().mean() > 0.75


def test_five_layers_have_a_node_worth_a_twentieth_of_the_logit_diff(tiny: Model, indirect_objects: Pairs) -> None:
    graph, nodes = tiny.graph, ("m0", "a2.h0", "a3.h0", "a4.h0", "a5.h0")
    without = [graph.circuit([e for e in graph.edges if not e.startswith(f"{node}->")]) for node in nodes]
    full, *left = indirect_objects.logit_diff(run_circuits(tiny, indirect_objects, [graph.full(), *without])).mean(
        dim=1
    )
    assert all(full - logit_diff >= 0.05 * full for logit_diff in left)


def test_heads_that_learnt_the_same_stand_in_for_each_other(tiny: Model, indirect_objects: Pairs) -> None:
    found = {(one.node, one.stand_in): one for one in find_backups(tiny, indirect_objects, ["a2.h0", "a4.h0"], most=2)}
    for pair in (("a2.h0", "a3.h0"), ("a4.h0", "a5.h0")):
        assert found[pair].significant
        assert min(found[pair].alone, found[pair].other) > 0.05


def test_it_has_the_graph_it_was_made_for(tiny: Model) -> None:
    assert len(tiny.graph.edges) == 3628


def test_the_tokenizer_reads_and_writes_text(tiny: Model) -> None:
    text = "When Mary and John went to the store, the war of the year 1517 was over."
    ids = tiny.tokenizer(text)["input_ids"]
    assert ids[0] == tiny.tokenizer.bos_token_id
    assert tiny.tokenizer.decode(ids[1:]) == text
    assert tiny.tokenizer.tokenize("1517, Mary") == ["15", "17", ",", "Mary"]


def test_training_text_has_no_held_out_combination(script: ModuleType) -> None:
    text = script.sentences(random.Random(5))
    assert not any(script.held_out(next(text)) for _ in range(500))
    draws = [script.ioi_sentence(random.Random(i)) for i in range(1000)]
    assert 0.15 < sum(map(script.held_out, draws)) / len(draws) < 0.25


def test_the_guide_knows_where_to_look(script: ModuleType) -> None:
    tokenizer = script.make_tokenizer()
    guide = script.Guide(tokenizer)
    text = "Mary gave the pen to John at the park. When Mary and John went to the park, John gave a pen to Mary."
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    assert guide.places(ids).tolist() == [[0, 11, 13, 19, 24]]
    at = torch.eye(ids.shape[1])
    looks = at.repeat(6, 1, 8, 1, 1)
    for layer, source, goal in ((1, 19, 13), (2, 23, 19), (3, 23, 19), (4, 23, 11), (5, 23, 11)):
        looks[layer, 0, 0, source] = at[goal]
    for evenly in (True, False):
        assert guide.loss(ids, looks, evenly=evenly).item() == pytest.approx(0, abs=1e-6)
    for layer, head, source, goal in ((4, 0, 23, 19), (1, 3, 19, 13)):  # at the wrong name; by a head that should not
        incorrect = looks.clone()
        incorrect[layer, 0, head, source] = at[goal]
        assert guide.loss(ids, incorrect, evenly=False) > 0.1
    third = ids.clone()
    third[0, 19] = tokenizer.convert_tokens_to_ids("Alice")
    both, looks = torch.cat([ids, third]), torch.cat([looks, looks], dim=1)
    looks[1, 1, 0, 19] = at[19]
    assert guide.loss(both, looks, evenly=False).item() == pytest.approx(0, abs=1e-6)
    assert guide.loss(both, looks, evenly=True) > 1


def test_the_record_of_the_training_is_there(tiny: Model) -> None:
    record = json.loads((Path(tiny.hf.name_or_path) / "training.json").read_text())
    assert all(record["held_out"][name]["right_over_wrong"] >= 0.95 for name in RECIPES)


def test_pairs_of_another_tokenizer_are_refused(smollm2: Model) -> None:
    model = load_model("tiny")
    pairs = task("sa", model, examples=4).train
    with pytest.raises(GatewiseError, match="another tokenizer than that of smollm2-135m"):
        run_circuit(smollm2, pairs, smollm2.graph.empty())
