"""The run store: what goes in comes out, damage is never trusted, nothing is ever half there."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors import safe_open
from small_models import problem, random_pairs, small_model
from stored_circuits import KEY, same, some_circuits

from gatewise import files as files_module
from gatewise.circuits.graph import Graph
from gatewise.compute import Compute
from gatewise.engine.metrics import Metric
from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.methods import discover, discover_all
from gatewise.methods.base import Finding, Method, Problem, ranked
from gatewise.methods.provenance import ingredients
from gatewise.models.synthetic.logic_model import synthetic_model, synthetic_pairs
from gatewise.store import Store
from gatewise.store.maintenance import list_entries
from gatewise.store.results import CIRCUITS, PLAIN, dataclass_codec, remember_all


@pytest.mark.parametrize(
    "graph",
    [
        Graph.transformer(2, 3, 8),
        Graph.transformer(1, 2, 8, parallel=True, qkv="merged"),
        synthetic_model("combined").graph,
    ],
)
def test_round_trip(tmp_path: Path, graph: Graph) -> None:
    store, circuits = Store(tmp_path / "new" / "runs"), some_circuits(graph)
    assert store.get(KEY) is None
    store.put(KEY, circuits, {"why": "test"})
    found = store.get(KEY)
    assert found is not None
    assert found[0].graph == graph
    assert same(found, circuits)


def path_of(store: Store, key: str) -> Path:
    return Path(store.location) / key[:2] / f"{key}.safetensors"


def test_an_entry_is_one_file_that_any_reader_of_safetensors_opens(tmp_path: Path) -> None:
    store, circuits = Store(tmp_path), some_circuits()
    store.put(KEY, circuits, {})
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [path_of(store, KEY)]
    with safe_open(path_of(store, KEY), "pt") as file:
        assert sorted(file.keys()) == ["masks", "scores.0"]  # three circuits share their scores
        assert circuits[0].scores is not None
        assert torch.equal(file.get_tensor("scores.0"), circuits[0].scores)
        assert json.loads(file.metadata()["gatewise"])["circuits"][1]["edges"] == 5


def test_the_same_result_gives_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for name in ("first", "second"):
        store = Store(tmp_path / name)
        store.put(KEY, some_circuits(), {"a": 1, "b": 2})
        contents.append(path_of(store, KEY).read_bytes())
    assert contents[0] == contents[1]


def test_what_json_cannot_hold_is_no_reason_to_lose_a_result(tmp_path: Path) -> None:
    circuit = Graph.transformer(1, 1, 4).full().with_provenance(correlation=float("nan"), pair=(1, 2))
    store = Store(tmp_path)
    store.put(KEY, [circuit], {})
    found = store.get(KEY)
    assert found is not None
    assert found[0].provenance == {"correlation": None, "pair": [1, 2]}


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "one more"])
def test_damage_is_detected_wherever_it_is_and_replaced(tmp_path: Path, damage: str) -> None:
    store, circuits = Store(tmp_path), some_circuits(Graph.transformer(1, 1, 4))
    store.put(KEY, circuits, {})
    path = path_of(store, KEY)
    sound = path.read_bytes()
    for place in range(0, len(sound), 1 if damage == "flip" else len(sound)):
        flipped = sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :]
        path.write_bytes({"flip": flipped, "cut": sound[:-1], "empty": b"", "one more": sound + b" "}[damage])
        with pytest.warns(GatewiseWarning, match=r"damaged.*computed again and replaced"):
            assert store.get(KEY) is None, place
    store.put(KEY, circuits, {})
    assert same(store.get(KEY) or [], circuits)


def test_an_entry_under_a_wrong_name_is_not_trusted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(KEY, some_circuits(), {})
    other = "cd" + KEY[2:]
    path_of(store, other).parent.mkdir()
    path_of(store, KEY).rename(path_of(store, other))
    with pytest.warns(GatewiseWarning, match=f"it is the circuits {KEY}"):
        assert store.get(other) is None


def test_the_store_of_an_earlier_version_is_named(tmp_path: Path) -> None:
    """It had a folder for each result."""
    (tmp_path / "ab" / KEY).mkdir(parents=True)
    (tmp_path / "ab" / KEY / "result.json").write_text("{}")
    expected = r"earlier version of gatewise.*give another place, or remove it"
    for action in (Store(tmp_path).tidy, lambda: list_entries(Store(tmp_path))):
        with pytest.raises(GatewiseError, match=expected):
            action()
    with pytest.raises(GatewiseError, match=expected):
        Store(tmp_path).remember({}, lambda: pytest.fail("worked"))


_WRITER = """
import sys
sys.path[:0] = {path!r}
from stored_circuits import some_circuits, same
from gatewise.store import Store
from gatewise.store.results import CIRCUITS, PLAIN, dataclass_codec, remember_all
store, circuits = Store(sys.argv[1]), some_circuits()
print("ready", flush=True)
sys.stdin.readline()
for i in range(40):
    key = f"{{i:02x}}" + "0" * 30
    store.put(key, circuits, {{}})
    assert same(store.get(key), circuits)
"""


def test_two_processes_may_store_the_same(tmp_path: Path) -> None:
    program = _WRITER.format(path=[str(Path(__file__).parents[1])])
    command = [sys.executable, "-W", "error::gatewise.errors.GatewiseWarning", "-c", program, str(tmp_path)]
    writers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        _, problems = writer.communicate(timeout=120)
        assert writer.returncode == 0, problems
    names = sorted(path.name for path in tmp_path.glob("*/*"))
    assert names == [f"{i:02x}" + "0" * 30 + ".safetensors" for i in range(40)]


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EROFS])
def test_no_space_and_read_only_are_clear_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    store = Store(tmp_path)
    store.put("cd" + KEY[2:], some_circuits(), {})

    def failing(path: Path, content: bytes) -> None:
        path.write_bytes(content[: len(content) // 2])
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(files_module, "_write", failing)
    with pytest.raises(GatewiseError, match=f"{os.strerror(problem)}.*untouched.*another folder"):
        store.put(KEY, some_circuits(), {})
    assert list((tmp_path / "ab").iterdir()) == []
    assert store.get(KEY) is None
    assert store.get("cd" + KEY[2:]) is not None


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    store = Store(tmp_path / "runs")
    for action in (lambda: store.put(KEY, some_circuits(), {}), store.check_writable):
        with pytest.raises(GatewiseError, match=r"cannot (read|write to) the store"):
            action()  # type: ignore[no-untyped-call]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("moment", ["in the file", "before the rename", "after the rename"])
def test_killed_at_any_moment_nothing_is_half_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A process that ends at once, without cleaning up."""
    store, circuits = Store(tmp_path), some_circuits()

    def dying(path: Path, content: bytes) -> None:
        path.write_bytes(content[: len(content) // 2])
        os._exit(9)

    def die(*_: Any) -> None:
        os._exit(9)

    if moment == "in the file":
        monkeypatch.setattr(files_module, "_write", dying)
    elif moment == "before the rename":
        monkeypatch.setattr(files_module.os, "replace", die)  # type: ignore[attr-defined]
    else:
        monkeypatch.setattr(files_module, "_flush_folder", die)
    child = os.fork()
    if child == 0:
        store.put(KEY, circuits, {})
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    monkeypatch.undo()
    assert (store.get(KEY) is None) == (moment != "after the rename")
    store.put(KEY, circuits, {})
    assert same(store.get(KEY) or [], circuits)
    store.tidy()
    assert [path.name for path in tmp_path.glob("*/*")] == [f"{KEY}.safetensors"]


NUMBERS = [0.1, 1 / 3, 5e-324, -1.7976931348623157e308, -0.0, 2**70, 1, True, None, "NaN"]


def test_remember_gives_back_exactly_what_was_computed(tmp_path: Path) -> None:
    store, calls = Store(tmp_path), []

    def compute() -> Any:
        calls.append(1)
        return {"numbers": NUMBERS, "odd": [float("nan"), float("inf"), -float("inf")], "pair": (1, 2)}

    first, again = (store.remember({"what": "test", "at": (0.1, float("inf"))}, compute) for _ in range(2))
    assert len(calls) == 1
    assert repr(first) == repr(again)  # NaN is unequal to itself, and 0.0 equal to -0.0
    assert repr(first["numbers"]) == repr(NUMBERS)
    assert repr(first["odd"]) == "[nan, inf, -inf]"
    assert first["pair"] == [1, 2]


def test_remember_tells_ingredients_apart(tmp_path: Path) -> None:
    store = Store(tmp_path)
    asked: list[dict[str, Any]] = [{}, {"a": 1}, {"a": 1.0}, {"a": "1"}, {"a": [1]}, {"b": 1}, {"a": None}, {"a": True}]
    given = [store.remember(ingredients, lambda i=i: i) for i, ingredients in enumerate(asked)]  # type: ignore[misc]
    assert given == list(range(len(asked)))
    assert store.remember({"y": 1, "x": 2}, lambda: "first") == store.remember({"x": 2, "y": 1}, lambda: "second")


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ({1: 2}, "key 1"),
        (torch.zeros(2), "is a Tensor"),
        ([{"x": {1, 2}}], r"\[0\]\['x'\] is a set"),
        ({"$float": 1}, "float"),
    ],
)
def test_remember_refuses_what_json_cannot_hold(tmp_path: Path, value: Any, match: str) -> None:
    with pytest.raises(GatewiseError, match=match):
        Store(tmp_path).remember({}, lambda: value)
    with pytest.raises(GatewiseError, match=match):
        Store(tmp_path).remember({"given": value}, lambda: 0)
    assert list(tmp_path.glob("*/*")) == []


def test_remember_never_trusts_damage(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.remember({"x": 1}, lambda: [0.25])
    (path,) = tmp_path.glob("*/*")
    path.write_bytes(path.read_bytes().replace(b"0.25", b"0.75"))
    with pytest.warns(GatewiseWarning, match="checksum does not hold"):
        assert store.remember({"x": 1}, lambda: [0.5]) == [0.5]
    assert store.remember({"x": 1}, lambda: [9]) == [0.5]


def no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """For results; a few bytes more can still be written."""
    real = files_module._write

    def full(path: Path, content: bytes) -> None:
        if ".safetensors." in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, content)

    monkeypatch.setattr(files_module, "_write", full)


@dataclass(frozen=True)
class Curve:
    name: str
    points: tuple[float, ...]


def test_remember_gives_back_dataclasses(tmp_path: Path) -> None:
    store, curve = Store(tmp_path), Curve("kl", (0.1, float("inf")))
    for compute in (lambda: curve, lambda: pytest.fail("computed again")):
        assert store.remember({"what": "curve"}, compute, dataclass_codec(Curve)) == curve


def test_only_what_is_missing_is_computed_and_stored_as_it_comes(tmp_path: Path) -> None:
    store, wanted = Store(tmp_path), {name: {"what": name} for name in ("a", "b", "c")}
    store.remember(wanted["b"], lambda: "from before")

    def compute(missing: list[str]) -> Any:
        assert missing == ["a", "c"]
        checkpoint = store.checkpoint(KEY)
        checkpoint.save({"step": 1}, {})
        yield {"a": 1}, [checkpoint]
        assert checkpoint.load() is None
        assert store.recall(wanted["a"]) == 1
        yield {"c": (2, 3)}, []

    results = remember_all(store, wanted, compute, PLAIN)
    assert results == {"a": 1, "b": "from before", "c": [2, 3]}
    assert remember_all(store, wanted, lambda _: pytest.fail("computed again"), PLAIN) == results
    assert remember_all(None, wanted, lambda missing: [(dict.fromkeys(missing, (1,)), [])], PLAIN)["b"] == (1,)


def test_remember_hands_over_what_cannot_be_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_space(monkeypatch)
    with pytest.warns(GatewiseWarning, match=r"not stored.*No space left"):
        assert Store(tmp_path).remember({}, lambda: 7) == 7
    assert list(tmp_path.glob("*/*")) == []


@dataclass(frozen=True)
class Fake(Method):
    """A method that notes every call."""

    name = "fake"
    calls: ClassVar[list[Problem]] = []

    rate: float = 0.5
    steps: int = 3

    def search(self, problem: Problem) -> dict[Any, list[Finding]]:
        self.calls.append(problem)
        scores = torch.arange(problem.graph.n_edges, dtype=torch.float32) / problem.graph.n_edges
        return ranked(problem, dict.fromkeys(problem.directions, scores))


class Other(Fake):
    """The same by another name."""


def test_the_key_changes_with_every_ingredient() -> None:
    model, pairs = small_model("gpt2"), random_pairs()
    sizes = (5, 10)
    base = problem(model, pairs, "ns", sizes=sizes)
    metrics = [Metric("mine", lambda logits, pairs: pairs.logit_diff(logits), version) for version in ("1", "2")]
    problems = [
        base,
        problem(small_model("gpt2", seed=1), pairs, "ns", sizes=sizes),
        problem(small_model("gpt2", qkv="merged"), pairs, "ns", sizes=sizes),
        problem(small_model("gpt2", dtype=torch.float64), pairs, "ns", sizes=sizes),
        problem(model, random_pairs(seed=1), "ns", sizes=sizes),
        problem(model, pairs.swapped(), "ns", sizes=sizes),
        problem(model, pairs, "dn", sizes=sizes),
        problem(model, pairs, "ns", "dn", sizes=sizes),
        problem(model, pairs, "ns", sizes=(5, 11)),
        problem(model, pairs, "ns", threshold=0.01),
        problem(model, pairs, "ns", threshold=0.02),
        problem(model, pairs, "ns", sizes=sizes, seed=1),
        problem(model, pairs, "ns", sizes=sizes, memory="1GB"),
        problem(model, pairs, "ns", sizes=sizes, ablation="zero"),
        *(problem(model, pairs, "ns", sizes=sizes, metric=metric) for metric in ("kl", *metrics)),
        dataclasses.replace(base, select="connected"),
    ]

    def key(asked: Problem, method: Method = Fake()) -> str:  # noqa: B008
        return Store("runs").key(ingredients(asked, method), CIRCUITS)

    keys = [key(asked) for asked in problems]
    keys += [key(base, Other()), key(base, Fake(steps=4))]
    model.hf.config.layer_norm_epsilon = 1e-3
    keys.append(key(base))
    model.hf.config.layer_norm_epsilon = 1e-5
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    keys.append(key(base))
    torch.set_num_threads(threads)
    assert len(set(keys)) == len(keys)
    assert key(problem(model, pairs, "ns", sizes=sizes, memory=4 << 30)) == keys[0]
    assert key(problem(small_model("gpt2"), random_pairs(), "ns", sizes=sizes)) == keys[0]


@pytest.fixture
def searches() -> list[Problem]:
    """What the method was asked."""
    Fake.calls.clear()
    return Fake.calls


def test_discover_finds_a_result_again(tmp_path: Path, searches: list[Problem]) -> None:
    model, pairs = synthetic_model("combined"), synthetic_pairs()
    first = discover_all(model, pairs, Fake(), ["ns"], sizes=[2, 4], compute=Compute(store=tmp_path))["ns"]
    again = discover_all(model, pairs, Fake(), ["ns"], sizes=[2, 4], compute=Compute(store=Store(tmp_path)))["ns"]
    assert len(searches) == 1
    assert same(list(first), list(again))
    one = discover(model, pairs, Fake(), edges=4, compute=Compute(store=str(tmp_path)))
    assert len(searches) == 2
    assert one == first[1]
    discover(model, pairs, Fake(), edges=4)
    assert len(searches) == 3


def test_discover_warns_of_an_empty_circuit_also_when_it_was_stored(tmp_path: Path, searches: list[Problem]) -> None:
    for _ in range(2):
        with pytest.warns(GatewiseWarning, match="keeps no edge"):
            discover(synthetic_model("and"), synthetic_pairs(), Fake(), threshold=9.0, compute=Compute(store=tmp_path))
    assert len(searches) == 1


def test_discover_refuses_before_the_work_and_keeps_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, searches: list[Problem]
) -> None:
    model, pairs = synthetic_model("and"), synthetic_pairs()
    (tmp_path / "file").write_text("")
    with pytest.raises(GatewiseError, match="cannot read the store"):
        discover(model, pairs, Fake(), edges=2, compute=Compute(store=tmp_path / "file"))
    assert searches == []

    no_space(monkeypatch)
    with pytest.warns(GatewiseWarning, match=r"not stored.*No space left"):
        assert len(discover(model, pairs, Fake(), edges=2, compute=Compute(store=tmp_path / "runs"))) == 2
