"""`gatewise run` on the small model: files, summary, JSON."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from gatewise.cli.answers import circumstances
from gatewise.cli.main import app
from gatewise.errors import GatewiseError

SMALL = ["tiny", "--method", "eap", "--edges", "100", "--examples", "8", "--out", "here"]


def gatewise(*arguments: str, folder: Path) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "120")
        return CliRunner().invoke(app, list(arguments))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def ran(folder: Path) -> Result:
    return gatewise("run", *SMALL, folder=folder)


def test_summary_answers_the_questions(ran: Result) -> None:
    assert ran.exit_code == 0, ran.output
    for question in ("How faithful?", "How complete?", "Which gates?", "Can I trust it?", "What next?"):
        assert question in ran.stdout
    assert "here/report.html" in ran.stdout
    assert "tested two at a time" in ran.stdout


def test_files_are_there(ran: Result, folder: Path) -> None:
    assert "<!doctype html>" in (folder / "here/report.html").read_text(encoding="utf-8")
    assert (folder / "here/report.html").stat().st_size < 1_000_000
    for name in ("gates.safetensors", "tables.json", "evaluation.json", "store"):
        assert (folder / "here" / name).exists(), name


def test_its_command_repeats_it_from_the_store(ran: Result, folder: Path) -> None:
    before = (folder / "here/evaluation.json").read_text()
    gates = (folder / "here/gates.safetensors").read_bytes()
    page = (folder / "here/report.html").read_text(encoding="utf-8")
    command = json.loads(page.partition('id="data">')[2].partition("</script>")[0])["command"]
    (folder / "here/evaluation.json").unlink()
    again = gatewise(*shlex.split(command)[1:], "--json", folder=folder)
    content = json.loads(again.stdout)
    assert (folder / "here/evaluation.json").read_text() == before
    assert (folder / "here/gates.safetensors").read_bytes() == gates  # provenance included
    assert content["command"] == command
    assert content["curves"]["ns"][-1]["edges"] == 100
    assert set(content["stability"]) == {"ns", "dn"}
    start = "gatewise run tiny --task ioi --method eap --edges 100 --examples 8 --random 1 --seed 0"
    assert command == f"{start} --out here"
    assert f"{start} --all-gates" in [step["command"] for step in content["next"]]


def test_asked_again_it_answers_without_computing(
    ran: Result, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After the test above, which asked in the same folder; not if anything has changed that counts."""
    first = gatewise("run", *SMALL, folder=folder)
    page = (folder / "here/report.html").stat().st_mtime_ns

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("it computes")

    monkeypatch.setattr("gatewise.cli.run.load_task", fail)
    again = gatewise("run", *SMALL, folder=folder)
    assert again.exit_code == 0, again.output
    assert again.stdout == first.stdout
    assert "nothing has changed" in again.stderr
    program = (
        "import sys; from gatewise.cli.main import app; app(sys.argv[1:], standalone_mode=False); "
        "assert not {'torch', 'transformers', 'numpy'} & sys.modules.keys()"
    )
    words = [sys.executable, "-c", program, "run", *SMALL, "--json"]
    as_json = json.loads(subprocess.run(words, cwd=folder, capture_output=True, check=True).stdout)
    assert {"headline", "curves", "files", "seconds"} <= as_json.keys()
    assert (folder / "here/report.html").stat().st_mtime_ns == page
    for words in ([*SMALL, "--seed", "1"], [*SMALL, "--store", str(tmp_path)], [*SMALL, "--set", "combine=max"]):
        assert "it computes" in str(gatewise("run", *words, folder=folder).exception), words
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert "it computes" in str(gatewise("run", *SMALL, folder=folder).exception)
    monkeypatch.undo()
    monkeypatch.setattr("gatewise.cli.run.load_task", fail)
    with (folder / "here/report.html").open("a") as page_file:
        page_file.write(" ")
    assert "it computes" in str(gatewise("run", *SMALL, folder=folder).exception)


def test_changed_files_of_a_model_or_a_task_are_noticed(tmp_path: Path) -> None:
    task, model = tmp_path / "my.csv", tmp_path / "model"
    task.write_text("clean,corrupted,right,wrong\n")
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"1")
    asked = circumstances("run", str(model), [str(task)], "eap")
    assert asked == circumstances("run", str(model), [str(task)], "eap")
    task.write_text("clean,corrupted,right,wrong\na,b,c,d\n")
    changed = circumstances("run", str(model), [str(task)], "eap")
    assert changed != asked
    (model / "model.safetensors").write_bytes(b"12")
    assert changed != circumstances("run", str(model), [str(task)], "eap")
    no_file = str(tmp_path / "no.csv")
    for name, tasks, method in (
        ("nobody/knows", ["ioi"], "eap"),
        ("tiny", ["ioi", no_file], "eap"),
        ("tiny", ["ioi"], "own:M"),
    ):
        assert circumstances("run", name, tasks, method) is None
    assert circumstances("run", "tiny", ["ioi"], "eap", ["rule=gim"]) is not None
    assert circumstances("run", "tiny", ["ioi"], "eap", ["rule=my_rules:RULE"]) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--edges", "10000000"], "a circuit of 10,000,000 edges was asked for; tiny has 3,628"),
        (["--sizes", "ten"], "expected whole numbers"),
        (["--method", "guess"], "no method 'guess'"),
    ],
)
def test_what_cannot_work_is_said(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = gatewise("run", "tiny", "--examples", "2", *arguments, folder=tmp_path)
    assert isinstance(done.exception, GatewiseError)
    assert message in str(done.exception)


def test_by_default_a_learned_ranking_is_as_large_as_faithfulness_needs(tmp_path: Path) -> None:
    done = gatewise("run", "tiny", "--examples", "24", "--json", "--out", "p", folder=tmp_path)
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    assert content["command"] == (
        "gatewise run tiny --task ioi --method ranking --faithfulness 0.75 --examples 24 --random 1 --seed 0 --out p"
    )
    chosen = content["faithfulness"]
    assert (chosen["goal"], chosen["search_pairs"], chosen["validation_pairs"]) == (0.75, 16, 8)
    assert content["sizes"][-1] == chosen["edges"]
    assert content["curves"]["ns"][-1]["recovered_dn"] is not None
    assert (
        "One training for each direction" in {remark["title"]: remark["text"] for remark in content["trust"]}["Seeds"]
    )
    assert any("--seeds 2" in step["command"] for step in content["next"])
    assert content["stability"] is None


def test_too_few_pairs_to_choose_a_size_are_said(tmp_path: Path) -> None:
    words = ["run", "tiny", "--examples", "8", "--faithfulness", "0.5", "--method", "eap", "--out", "p"]
    assert "and there are 8; give at least 16" in str(gatewise(*words, folder=tmp_path).exception)
    words = ["run", "tiny", "--faithfulness", "1.5", "--out", "p"]
    assert "between 0 and 1" in str(gatewise(*words, folder=tmp_path).exception)
    words = ["run", "tiny", "--faithfulness", "0.5", "--method", "acdc", "--out", "p"]
    assert "acdc searches anew for every size" in str(gatewise(*words, folder=tmp_path).exception)


def test_synthetic_models_bring_their_own_pairs(tmp_path: Path) -> None:
    done = gatewise("run", "synthetic:and", "--edges", "2", "--json", "--out", "p", folder=tmp_path)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["model"].startswith("synthetic")
