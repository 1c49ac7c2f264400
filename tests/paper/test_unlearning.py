"""Unlearning: how harmful questions are read and paired, and what is forgotten where there are none."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from gatewise.engine import run_circuit
from gatewise.engine.setting import Setting
from gatewise.errors import GatewiseError
from gatewise.models.loader import load_model
from gatewise.tasks.encoding import Encoder
from gatewise_paper.bottlenecks import BOTTLENECK
from gatewise_paper.experiments.unlearning import (
    EXPERIMENT,
    BottleneckKey,
    UnlearningKey,
    accuracies_without,
    bottlenecks,
)
from gatewise_paper.lab import Lab
from gatewise_paper.presets import FORGET, KEEP, PAPER, QUICK, Forgetting
from gatewise_paper.runner import judge
from gatewise_paper.unlearning_data import check_data, pair_answers, read_answers, to_keep

SMALL = QUICK.changed(
    pairs=2, seeds=1, held_out=6, sizes=[5, 20], forgetting=Forgetting(sizes=(1, 2, 5, 20)), methods=("eap",)
)


def _open_encoder() -> Encoder:
    """A tokenizer of bytes, made here: it knows every text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return Encoder(PreTrainedTokenizerFast(tokenizer_object=tokenizer))


def test_both_layouts_of_files_say_the_same(tmp_path: Path) -> None:
    one = {"prompt": "How?", "response_0": "Like so", "response_1": "No", "is_response_0_safe": False}
    one["is_response_1_safe"] = True
    (tmp_path / "own.jsonl").write_text(json.dumps(one) + "\n\n")
    (tmp_path / "each.csv").write_text("prompt,response,is_safe\nHow?,Like so,False\nHow?,No,true\n")
    expected = {"How?": [("Like so", False), ("No", True)]}
    assert read_answers(tmp_path / "own.jsonl") == expected
    assert read_answers(tmp_path / "each.csv") == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", "{", "line 1: not valid JSON"),
        ("a.jsonl", "[1]\n", "expected a JSON object"),
        ("a.csv", "prompt,answer\nHow?,So\n", "expected prompt, response_0"),
        ("a.csv", "prompt,response,is_safe\nHow?,So,perhaps\n", "neither safe nor unsafe"),
        ("a.txt", "", "expected a .jsonl or .csv file"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(GatewiseError, match=message):
        read_answers(tmp_path / name)


def test_harmful_questions_are_paired_with_harmless_ones_of_equal_length() -> None:
    encoder = _open_encoder()
    records = {
        "bad one?": [("xa", False), ("ya", True)],
        "bad two?": [("xb", False), ("yb", True)],
        "bad alike": [("same", False), ("same too", True)],
        "bad long question?": [("xc", False), ("yc", True)],  # no counterpart of its length
        "fine 1?.": [("za", True)],
        "all bad.": [("za", False)],  # neither
    }
    # one token for each letter, a space before the answer: first tokens would all be spaces
    pairs = pair_answers(records, _WithoutSpace(encoder))
    assert [pair.clean for pair in pairs] == ["Question: bad one?\nAnswer:", "Question: bad two?\nAnswer:"]
    assert {pair.corrupted for pair in pairs} == {"Question: fine 1?.\nAnswer:"}
    assert (pairs[0].correct, pairs[0].incorrect) == ((" xa",), (" ya",))


class _WithoutSpace(Encoder):
    """Answers begin after their space, so that a tokenizer of letters can tell them apart."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(encoder.tokenizer)

    def tokens(self, texts: object) -> list[list[int]]:
        return super().tokens([text.replace(": ", ":").replace(":\n", ":") for text in texts])  # type: ignore[attr-defined]


def test_too_little_data_says_what_is_missing() -> None:
    with pytest.raises(GatewiseError, match="1 have a safe and an unsafe answer, 0 of these"):
        pair_answers({"bad?": [("x", False), ("y", True)]}, _open_encoder())


def test_without_data_the_paper_preset_says_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # not installed
    for preset in (PAPER, PAPER.changed(forgetting=Forgetting("nowhere.jsonl"))):
        with pytest.raises(GatewiseError, match=r"--unlearn FILE"):
            check_data(preset)
    check_data(SMALL)


def test_the_substitute_forgets_one_template_and_keeps_the_others(tmp_path: Path) -> None:
    lab = Lab(SMALL, tmp_path)
    texts = (*lab.pairs(FORGET, "eap").clean_text, *lab.held_out(FORGET).clean_text)
    assert all(text.startswith("When ") for text in texts)
    assert not any(text.startswith("When ") for text in lab.held_out(KEEP).clean_text)
    assert to_keep(SMALL) == {KEEP: "IOI, other templates", "gt": "GT", "sa": "SA"}
    assert len(lab.held_out(FORGET)) == len(lab.held_out(KEEP)) == 6
    assert Lab(SMALL, tmp_path).held_out(FORGET).fingerprint == lab.held_out(FORGET).fingerprint


def test_sizes_for_unlearning_are_the_presets(tmp_path: Path) -> None:
    lab = Lab(SMALL, tmp_path)
    assert lab.sizes.of("eap", FORGET) == (1, 2, 5, 20)
    assert lab.sizes.of("eap", "ioi") == (5, 20)


@pytest.mark.parametrize("smallest", [-math.inf, 0.02, 0.3])
def test_bottlenecks_cost_every_task(tmp_path: Path, smallest: float) -> None:
    lab, tasks = Lab(SMALL, tmp_path), ("ioi", "gt")
    found = bottlenecks(lab, BottleneckKey(FORGET, "eap", "ns", 0, tasks, smallest, 2))
    expected = {}
    for edge in lab.circuits(FORGET, "eap", "ns")[20].top(20):
        costs = []
        for name in tasks:
            pairs = lab.pairs(name, "eap", 0)[:2]
            whole = Setting.of(lab.model, pairs)
            clean, corrupted = (whole.last_logits(side).double().log_softmax(-1) for side in ("clean", "corrupted"))
            without = run_circuit(lab.model, pairs, ~lab.model.graph.circuit([edge])).double().log_softmax(-1)
            change, between = ((clean.exp() * (clean - other)).sum(-1).mean() for other in (without, corrupted))
            costs.append(float(change / between))
        if min(costs) >= smallest:
            expected[edge] = costs
    assert found.keys() == expected.keys()
    assert [cost for some in found.values() for cost in some] == pytest.approx(
        [cost for some in expected.values() for cost in some], abs=1e-5
    )


@pytest.mark.parametrize("is_left", [False, True])
def test_accuracies_are_those_of_the_model_without_each_circuit(tmp_path: Path, is_left: bool) -> None:
    lab = Lab(SMALL, tmp_path)
    left = BottleneckKey(FORGET, "eap", "ns", 0, ("ioi",), 0.02, 2) if is_left else None
    found, pairs = accuracies_without(lab, UnlearningKey("gt", "eap", "ns", 0, left)), lab.held_out("gt")
    kept = lab.model.graph.circuit(list(bottlenecks(lab, left)) if left else [])
    assert bool(kept) == is_left
    for place, circuit in enumerate(lab.circuits(FORGET, "eap", "ns").values()):
        logits = run_circuit(lab.model, pairs, ~(circuit - kept))
        assert found["top_accuracy"][place] == float(pairs.top1_accuracy(logits).double().mean())
        assert found["accuracy"][place] == float(pairs.pairwise_accuracy(logits).double().mean())


def test_removing_circuits_of_tiny_takes_ioi_and_leaves_sa(tmp_path: Path) -> None:
    lab = Lab(SMALL, tmp_path)
    outcome = judge(lab, EXPERIMENT, EXPERIMENT.measurements(lab))
    rows = {(row[0], row[1]): row[2:] for row in outcome.tables[0].rows}
    assert rows["whole model", 0] == [1.0, 1.0, 1.0, 1.0]
    assert float(rows["EAP (Ns+Dn, ours)", 20][0]) < 1.0  # type: ignore[arg-type]
    assert float(rows["EAP (Ns+Dn, ours)", 2][3]) == 1.0  # type: ignore[arg-type]
    assert len(outcome.rulings) == 4  # both claims, and both with the bottlenecks left in place
    named = outcome.tables[-1]
    assert named.title == "Bottleneck edges of every task"
    assert all(min(row[2:]) >= BOTTLENECK for row in named.rows if row[0] != "none")  # type: ignore[operator,type-var]
    left = rows["EAP (Ns+Dn, ours, bottleneck edges left in place)", 20]
    assert float(left[0]) >= float(rows["EAP (Ns+Dn, ours)", 20][0])  # type: ignore[arg-type]
    assert load_model("tiny").fingerprint == lab.model.fingerprint
