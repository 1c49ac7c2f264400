"""What is fuzzed: one target for each loader. The only outcomes allowed are success and `GatewiseError`.

Targets work on bytes in memory, so that a case takes microseconds; only those that need a folder write one. Seeds are
valid files, made here by the code that writes them.
"""

from __future__ import annotations

import atexit
import json
import re
import shutil
import struct
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from gatewise.archive import DamagedError
from gatewise.circuits.circuit import Circuit
from gatewise.circuits.formats import circuit_from, circuit_to_json
from gatewise.circuits.graph import Graph
from gatewise.cli.answers import stored_answer
from gatewise.errors import GatewiseError
from gatewise.files import parse_json
from gatewise.gates.labels import Gates, label_gates
from gatewise.models.config import check_config, config_of
from gatewise.models.config_keys import check_keys
from gatewise.models.gguf.file import parse_gguf
from gatewise.models.gguf.model import gguf_model
from gatewise.models.gguf.tokenizer import tokenizer_parts
from gatewise.models.weights import index_names
from gatewise.store import Store
from gatewise.store.checkpoints import Checkpoint
from gatewise.store.format import circuits_in, pack_result, pack_value, value_in
from gatewise.sweep.grid import read_grid
from gatewise.tasks.encoding import Encoder
from gatewise.tasks.parsing import with_spaces
from gatewise.tasks.task_files import parse_rows
from gatewise_paper.records import read_records

warnings.simplefilter("ignore")


@dataclass(frozen=True)
class Target:
    """A loader of bytes."""

    name: str
    seeds: Callable[[], list[bytes]]  # valid files
    load: Callable[[bytes], object]
    json: bool = False  # whether mutations may work on the parsed content
    cheap: bool = True  # microseconds, not milliseconds
    cases: int = 1_000_000  # of a long run

    def run(self, content: bytes) -> None:
        """Load, and raise whatever the loader may not raise."""
        with suppress(GatewiseError, DamagedError):  # the store sets aside what is damaged, with a warning
            self.load(content)


# Circuits and gates


@cache
def _graph() -> Graph:
    return Graph.transformer(1, 1, 4)


@cache
def _logic() -> Graph:
    return Graph.layered(["a", "b"], [["c"]], 4)


def _circuits() -> list[Circuit]:
    graph, logic = _graph(), _logic()
    scores = torch.linspace(-1, 1, graph.n_edges, dtype=torch.float64)
    mask = torch.arange(graph.n_edges) % 3 == 0
    return [
        Circuit(graph, mask, scores, {"method": "eap", "direction": "ns", "parameters": {"combine": "sum"}}),
        Graph.transformer(1, 1, 4, qkv="merged").full(),
        Graph.transformer(1, 1, 4, parallel=True).empty(),
        Circuit(logic, torch.arange(logic.n_edges) < 2),
    ]


def _circuit_files() -> list[bytes]:
    found = [json.dumps(circuit_to_json(circuit)).encode() for circuit in _circuits()]
    return [*found, b'[["a0.h0", "m0"], ["embeds", "a0.h0.q"], ["m0", "resid_post"]]']


def _gates_files() -> list[bytes]:
    found = []
    logic = Graph.layered(["a"], [["b"]], 1)
    for ns, dn, joint in (([0, 1], [1, 2], None), ([0], [2], [0, 2])):
        gates = label_gates(logic.circuit(ns), logic.circuit(dn), joint=None if joint is None else logic.circuit(joint))
        with tempfile.TemporaryDirectory() as folder:
            gates.save(Path(folder) / "gates.safetensors")
            found.append((Path(folder) / "gates.safetensors").read_bytes())
    return found


# Pairs


_CSV = (
    b'clean,corrupted,right,wrong\n"When Mary, John and ","When Tom, John and",Mary,John\n',
    b'\xef\xbb\xbfwrong,right,corrupted,clean\r\n" 12|13"," 14",a b,c d\r\n\r\n"x ""y""",z,e,f\r\n',
)
_JSONL = (
    b'{"clean": "one two", "corrupted": "one ten", "right": " a", "wrong": ["b", "c|d"]}\n\n',
    b'{"clean": "\\u00e9", "corrupted": "e", "right": ["x"], "wrong": "y|z"}\r\n{"clean": "a 1", "corrupted": "b 2", '
    b'"right": "2", "wrong": "3"}',
)


_KNOWN = (  # words of `tiny`
    b'{"clean": "When Mary and John went to the store, John gave a drink to", "corrupted": "When Mary and John went to '
    b'the store, Tom gave a drink to", "right": "Mary", "wrong": ["John"]}'
)


@cache
def _encoder() -> Encoder:
    from transformers import AutoTokenizer

    from gatewise.models.loader import TINY_FOLDER

    return Encoder(AutoTokenizer.from_pretrained(TINY_FOLDER), None, 64)


def _encode(content: bytes) -> None:
    encoder = _encoder()
    for row in parse_rows(content, Path("pairs.jsonl")):
        encoder.encode(with_spaces(row.example, encoder))


# Grids, stores, checkpoints


_TOML = (
    b'models = ["tiny", "smollm2-135m"]\ntasks = "ioi"\ndirections = ["ns", "ns+dn"]\nsizes = [10, [20, 30]]\n'
    b'seeds = [0, 1]\nmemory = "1GB"\n[methods.eap]\ncombine = ["sum", "max"]\n[methods.edge-pruning]\nsteps = 30\n',
    b'models = "tiny"\ntasks = ["gt", "pairs.csv"]\nmethods = ["acdc", "eap-ig"]\nthresholds = [0.01, 1e-3]\n'
    b'examples = 8\ntest_examples = 8\nrandom_circuits = 0\nthreads = 1\ndtype = "bfloat16"\n',
)
_KEY = "0" * 64


_RESULTS = json.dumps(
    {"about": {"preset": "quick", "weights": "ab"}, "experiments": {"completeness": {"verdicts": []}}, "failed": {}}
).encode()


def _read_results(content: bytes) -> None:
    """The results that `gatewise reproduce` left in a folder."""
    (_folder() / "results.json").write_bytes(content)
    read_records(_folder(), {"preset": "quick", "weights": "ab"})


def _read_grid(content: bytes) -> None:
    path = _folder() / "grid.toml"
    path.write_bytes(content)
    grid = read_grid(path)
    if len(grid) <= 1_000:
        grid.cells()


@cache
def _folder() -> Path:
    """A folder for the targets that need one; memory where the system has a file system of memory."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="gatewise-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _entries() -> list[bytes]:
    value = {"numbers": [1, 2.5, float("nan")], "text": None}
    return [pack_result(_KEY, _circuits()[:1], {"method": "eap"}), pack_value(_KEY, value, {"what": "a test"})]


def _sealed(content: bytes) -> bytes:
    """With a checksum that holds: whoever can write a file can write that, too."""
    found = re.search(rb'sha256\\": \\"([0-9a-f]{64})', content)
    if found is None:
        return content
    blank = content.replace(found[1], b"0" * 64, 1)
    return blank.replace(b"0" * 64, sha256(blank).hexdigest().encode(), 1)


def _read_entry(content: bytes) -> None:
    (value_in if b"numbers" in content else circuits_in)(_sealed(content), _KEY)


def _checkpoints() -> list[bytes]:
    with TemporaryDirectory() as folder:
        Store(folder).checkpoint(_KEY).save({"step": 3, "history": [[0.5, 1.0]]}, {"x": torch.arange(4)})
        return [path.read_bytes() for path in Path(folder).glob("*/*.checkpoint")]


@cache
def _place() -> Checkpoint:
    return Checkpoint(None, _KEY)


# Results of the command line


def _answers() -> list[bytes]:
    return [json.dumps({"circumstances": {"command": "run"}, "answer": {"edges": 3}, "written": {}}).encode()]


def _read_answer(content: bytes) -> None:
    """What `gatewise run` keeps beside its files."""
    (_folder() / "answer.json").write_bytes(content)
    stored_answer(_folder(), {"command": "run"})


# Models


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _gguf() -> list[bytes]:
    """A Llama with byte-level BPE, and one with SentencePiece's pieces and scores."""
    byte_level = [
        _text("tokenizer.ggml.model") + struct.pack("<I", 8) + _text("gpt2"),
        _text("tokenizer.ggml.pre") + struct.pack("<I", 8) + _text("smollm"),
        _text("tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, 1) + _text("Ġ a"),
    ]
    pieces = [
        _text("tokenizer.ggml.model") + struct.pack("<I", 8) + _text("llama"),
        _text("tokenizer.ggml.scores") + struct.pack("<IIQ4f", 9, 6, 4, 0, -1, -2, -3),
        _text("tokenizer.ggml.add_space_prefix") + struct.pack("<IB", 7, 0),
    ]
    return [_gguf_file(["<|a|>", "Ġ", "a", "Ġa"], byte_level), _gguf_file(["<s>", "▁", "a", "▁a"], pieces)]


def _gguf_file(tokens: list[str], tokenizer: list[bytes]) -> bytes:
    sizes = {
        "embedding_length": 4, "attention.head_count": 2, "attention.head_count_kv": 1, "vocab_size": 4,
        "feed_forward_length": 4, "block_count": 1, "context_length": 16,
    }  # fmt: skip
    fields = [
        _text("general.architecture") + struct.pack("<I", 8) + _text("llama"),
        _text("tokenizer.chat_template") + struct.pack("<I", 8) + _text("{{ x }}"),
        *(_text(f"llama.{key}") + struct.pack("<II", 4, value) for key, value in sizes.items()),
        _text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5),
        _text("llama.rope.freq_base") + struct.pack("<If", 6, 1e4),
        _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 4) + b"".join(map(_text, tokens)),
        _text("tokenizer.ggml.token_type") + struct.pack("<IIQ4i", 9, 5, 4, 3, 1, 1, 1),
        *(
            _text(f"tokenizer.ggml.{n}_token_id") + struct.pack("<II", 4, 0)
            for n in ("bos", "eos", "unknown", "padding")
        ),
        *tokenizer,
    ]
    tensors = [
        _text("token_embd.weight") + struct.pack("<IQQIQ", 2, 4, 4, 0, 0),  # float32
        _text("blk.0.attn_q.weight") + struct.pack("<IQQIQ", 2, 32, 4, 8, 64),  # Q8_0
        _text("blk.0.attn_norm.weight") + struct.pack("<IQIQ", 1, 4, 1, 224),  # float16
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)) + b"".join(fields) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + bytes(256)


def _convert(content: bytes) -> None:
    model = gguf_model(*parse_gguf(np.frombuffer(content, dtype=np.uint8), "model.gguf"), "model.gguf")
    for _name, _weight in model.weights():
        pass
    model.tokenizer()


def _configs() -> list[bytes]:
    from gatewise.models.loader import TINY_FOLDER

    llama = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
             "num_key_value_heads": 1, "intermediate_size": 8, "vocab_size": 16}  # fmt: skip
    return [(TINY_FOLDER / "config.json").read_bytes(), json.dumps(llama).encode()]


def _config(content: bytes) -> None:
    found = parse_json(content, "config.json", "a config.json")
    if isinstance(found, dict):
        check_config(found, "config.json")


def _config_object(content: bytes) -> None:
    """The config of one of our architectures, as transformers makes it, and whether its adapter follows it."""
    from gatewise.models.transformer import adapter_for

    found = parse_json(content, "config.json", "a config.json")
    if isinstance(found, dict) and isinstance(found.get("model_type"), str):
        adapter_for(found["model_type"])
        check_keys(config_of(found, "config.json"))


def _more_configs() -> list[bytes]:
    neo = {"model_type": "gpt_neo", "hidden_size": 8, "num_layers": 2, "num_heads": 2, "vocab_size": 16,
           "attention_types": [[["global", "local"], 1]], "num_labels": 2, "is_causal": True}  # fmt: skip
    gemma = {"model_type": "gemma3_text", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
             "layer_types": ["full_attention"], "use_bidirectional_attention": False, "attn_implementation": "eager",
             "text_config": {}, "rope_parameters": None}  # fmt: skip
    return [*_configs(), json.dumps(neo).encode(), json.dumps(gemma).encode()]


_INDEXES = (
    b'{"metadata": {"total_size": 8}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "m.safetensors"}}',
    b'{"weight_map": {"a": "../x.safetensors"}}',
    b'{"weight_map": {"a": "pytorch_model.bin"}}',
)


def _tokenizers() -> list[bytes]:
    """What a GGUF file says about its tokenizer, as JSON, so that mutations reach every field."""
    common = {"bos_token_id": 0, "unknown_token_id": 0, "token_type": [3, 1, 1, 1]}
    pieces = {"model": "llama", "tokens": ["<s>", "a", "b", "ab"], "scores": [0.0, -1.0, -2.0, -3.0], **common}
    byte_level = {"model": "gpt2", "pre": "qwen2", "tokens": ["<s>", "a", "b", "ab"], "merges": ["a b"], **common}
    return [json.dumps(pieces).encode(), json.dumps({**byte_level, "add_bos_token": True}).encode()]


def _build_tokenizer(content: Any) -> None:
    """Values of the kinds that the container can hold: numbers, texts in UTF-8, lists of texts, arrays of numbers."""
    metadata: dict[str, Any] = {}
    for key, value in content.items() if isinstance(content, dict) else ():
        if isinstance(value, list):
            texts = all(isinstance(member, str) for member in value)
            if not texts and not all(isinstance(member, (int, float)) and abs(member) < 1 << 31 for member in value):
                continue
            value = list(map(_in_utf8, value)) if texts else np.array(value)
        value = _in_utf8(value) if isinstance(value, str) else value
        if isinstance(value, (str, int, float, list, np.ndarray)):
            metadata[f"tokenizer.ggml.{key}"] = value
    tokenizer_parts(metadata, 16).tokenizer.encode("ab a $A")


def _in_utf8(text: str) -> str:
    """A text without halves of surrogate pairs, which JSON can spell and a container cannot hold."""
    return text.encode("utf-8", "replace").decode()


def _load_folder(content: bytes) -> None:
    """A folder with the weights of `tiny` and this config.json."""
    from gatewise.models.loader import load_model

    folder = _tiny_copy()
    (folder / "config.json").write_bytes(content)
    load_model(folder)


@cache
def _tiny_copy() -> Path:
    from gatewise.models.loader import TINY_FOLDER

    folder = _folder() / "tiny"
    folder.mkdir()
    for path in TINY_FOLDER.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def _json(load: Callable[[Any], object]) -> Callable[[bytes], object]:
    return lambda content: load(parse_json(content, "file.json", "a file"))


TARGETS = {
    target.name: target
    for target in (
        Target("circuit", _circuit_files, _json(lambda found: circuit_from(found, "c.json", _graph())), json=True),
        Target("circuit-any", _circuit_files, _json(lambda found: circuit_from(found, "c.json")), json=True),
        Target("gates", _gates_files, lambda content: Gates.from_bytes(_sealed(content), "g.safetensors")),
        Target("csv", lambda: list(_CSV), lambda content: parse_rows(content, Path("p.csv"))),
        Target("jsonl", lambda: list(_JSONL), lambda content: parse_rows(content, Path("p.jsonl")), json=True),
        Target("pairs", lambda: [_KNOWN, *_JSONL], _encode, json=True, cases=200_000),
        Target("grid", lambda: list(_TOML), _read_grid),
        Target("gguf", _gguf, _convert),
        Target("checkpoint", _checkpoints, lambda content: _place()._unpacked(_sealed(content))),
        Target("entry", _entries, _read_entry),
        Target("config", _configs, _config, json=True),
        Target("config-object", _more_configs, _config_object, json=True, cheap=False, cases=20_000),
        Target("index", lambda: list(_INDEXES), lambda content: index_names(content, "index.json"), json=True),
        Target("tokenizer", _tokenizers, _json(_build_tokenizer), json=True, cases=200_000),
        Target("answer", _answers, _read_answer, json=True, cases=200_000),
        Target("results", lambda: [_RESULTS], _read_results, json=True, cases=200_000),
        Target("folder", _configs, _load_folder, json=True, cheap=False, cases=1_000),
    )
}
