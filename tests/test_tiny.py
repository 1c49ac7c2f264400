"""The built-in model `tiny` does the three tasks on prompts that it was not trained on."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from types import ModuleType

import pytest

from gatewise.engine import last_logits, run_circuit
from gatewise.errors import GatewiseError
from gatewise.evaluation import check_task
from gatewise.models import load_model
from gatewise.models.model import Model
from gatewise.tasks import RECIPES, Pairs, task
from gatewise.tasks.encoder import Encoder

SCRIPT = Path(__file__).parents[1] / "scripts" / "train_tiny.py"


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


def accuracy(model: Model, pairs: Pairs) -> float:
    return pairs.right_over_wrong(last_logits(model, pairs)).float().mean().item()


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


def test_after_a_third_name_both_names_are_as_likely(tiny: Model) -> None:
    pairs = task("ioi", tiny).train
    probabilities = last_logits(tiny, pairs, side="corrupted").softmax(dim=-1)
    right, wrong = (probabilities.gather(1, answers).mean().item() for answers in (pairs.right, pairs.wrong))
    assert right + wrong > 0.8
    assert abs(right - wrong) < 0.2


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


def test_the_record_of_the_training_is_there(tiny: Model) -> None:
    record = json.loads((Path(tiny.hf.name_or_path) / "training.json").read_text())
    assert all(record["held_out"][name]["right_over_wrong"] >= 0.95 for name in RECIPES)


def test_pairs_of_another_tokenizer_are_refused(smollm2: Model) -> None:
    model = load_model("tiny")
    pairs = task("sa", model, examples=4).train
    with pytest.raises(GatewiseError, match="another tokenizer than that of smollm2-135m"):
        run_circuit(smollm2, pairs, smollm2.graph.empty())
