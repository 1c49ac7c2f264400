"""Folders and files of models that were made to harm: what they name is not loaded, what they ask for is not built."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gatewise.cli.main import app
from gatewise.errors import GatewiseError
from gatewise.models import load_model
from gatewise.models.config import check_config
from gatewise.models.loader import TINY_FOLDER
from gatewise.plan.sources import subject

pytestmark = pytest.mark.attack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of `tiny`."""
    copy = tmp_path / "model"
    copy.mkdir()
    for path in TINY_FOLDER.iterdir():
        if path.is_file():
            shutil.copyfile(path, copy / path.name)
    return copy


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Nothing here may take long: most of it is about what would take for ever."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < 10


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


# Sizes


BOMBS: list[dict[str, Any]] = [
    {"num_labels": 10_000_000},
    {"num_layers": 10_000_000},
    {"decoder_layers": 10_000_000},
    {"text_config": {"num_hidden_layers": 10_000_000}},
    {"text_config": {"vision": [{"n_layer": 10_000_000}]}},
    {"attention_types": [[["global", "local"], 10_000_000]]},
    {"layer_types": ["full_attention"] * 200_000},
    {"id2label": {str(number): "x" for number in range(200_000)}},
    {"rope_parameters": {"rope_type": "default", "long_factor": [1.0] * 200_000}},
    {"num_local_experts": 10_000_000},
    {"bos_token_id": 10**30},
    {"something": 10**4000},
]


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: next(iter(bomb)))
def test_sizes_are_bounded_at_every_depth(folder: Path, bomb: dict[str, Any]) -> None:
    change_config(folder, **bomb)
    with pytest.raises(GatewiseError, match="expected a whole number up to|nested too deeply|from 1 to"):
        load_model(folder)
    with pytest.raises(GatewiseError):
        subject(str(folder), "ioi", 4, "float32")


def test_gpt_neo_with_ten_million_layers() -> None:
    with pytest.raises(GatewiseError, match="num_layers is 10000000; expected a whole number from 1 to 1,000"):
        check_config({"model_type": "gpt_neo", "num_layers": 10_000_000}, "config.json")


def test_values_nested_without_end(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    nested = "[" * 900 + "]" * 900
    (folder / "config.json").write_text(json.dumps(config)[:-1] + f', "deep": {nested}}}')
    with pytest.raises(GatewiseError, match="nested too deeply"):
        load_model(folder)


def test_a_config_of_many_megabytes(folder: Path) -> None:
    change_config(folder, note="x" * (9 << 20))
    with pytest.raises(GatewiseError, match="larger than 8,388,608 bytes"):
        load_model(folder)


@pytest.mark.parametrize("model_type", ["bert", "gemma3", "qwen2_vl", "no-such-type"])
def test_an_architecture_without_an_adapter_is_refused_before_it_is_made(folder: Path, model_type: str) -> None:
    change_config(folder, model_type=model_type)
    for load in (load_model, lambda path: subject(str(path), "ioi", 4, "float32")):
        with pytest.raises(GatewiseError, match=f"'{model_type}' is not supported"):
            load(folder)


def test_usual_numbers_pass() -> None:
    """Large ones that real configs have."""
    config = {"model_type": "llama", "rope_theta": 500_000_000, "max_position_embeddings": 1 << 20, "pad_token_id": -1}
    config |= {"eos_token_id": [128_001, 128_008], "num_parameters": 10**12, "hidden_size": 16_384}
    config |= {"rope_scaling": {"original_max_position_embeddings": 8192, "factor": 8}, "id2label": {"0": "LABEL_0"}}
    check_config(config, "config.json")


# Weights


class RunsCode:
    """A pickle that leaves a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def split_in_two(folder: Path, second: str) -> None:
    """Name the weights in an index, of which one file is `second`."""
    (folder / "model.safetensors").rename(folder / "part-1.safetensors")
    index = {"metadata": {}, "weight_map": {"transformer.wte.weight": "part-1.safetensors", "lm_head.weight": second}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_an_index_that_names_a_pickle(folder: Path, tmp_path: Path) -> None:
    split_in_two(folder, "pytorch_model.bin")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(RunsCode(tmp_path / "it-ran")))
    with pytest.raises(GatewiseError, match=r"names 'pytorch_model.bin'; expected names of \*.safetensors"):
        load_model(folder)
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize(
    "name", ["../other/model.safetensors", "/etc/passwd", "sub/model.safetensors", "..\\x.safetensors", "", 7, None]
)
def test_an_index_that_names_a_file_elsewhere(folder: Path, tmp_path: Path, name: Any) -> None:
    shutil.copytree(folder, tmp_path / "other")
    split_in_two(folder, name)
    with pytest.raises(GatewiseError, match=r"index.json names .*; expected names of \*.safetensors"):
        load_model(folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"weight_map": []}', b'{"weight_map": {}}', b"\xff" * 9])
def test_a_broken_index(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").rename(folder / "part-1.safetensors")
    (folder / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(GatewiseError, match=r"index.json (has no 'weight_map'|is not valid JSON)"):
        load_model(folder)


def test_a_sound_index_is_followed(folder: Path) -> None:
    split_in_two(folder, "part-1.safetensors")
    assert load_model(folder).fingerprint == load_model("tiny").fingerprint


def test_a_missing_part_is_named(folder: Path) -> None:
    split_in_two(folder, "part-2.safetensors")
    with pytest.raises(GatewiseError, match="names part-2.safetensors, which is not there"):
        load_model(folder)


@pytest.mark.parametrize("key", ["transformers_weights", "quantization_config", "_attn_implementation"])
def test_a_config_that_names_other_weights_or_code(folder: Path, key: str) -> None:
    change_config(folder, **{key: "../other.safetensors"})
    with pytest.raises(GatewiseError, match=f"{key} is '../other.safetensors', which gatewise does not follow"):
        load_model(folder)


@pytest.mark.parametrize("name", ["kernels-community/flash-attn", "flash_attention_2", {"": "a/b"}, "paged|eager"])
def test_an_attention_that_would_come_from_a_hub(folder: Path, name: Any) -> None:
    change_config(folder, attn_implementation=name)
    for load in (load_model, lambda path: subject(str(path), "ioi", 4, "float32")):
        with pytest.raises(GatewiseError, match="attn_implementation is .*, which gatewise does not follow"):
            load(folder)
    change_config(folder, attn_implementation="eager")
    load_model(folder)


def test_an_adapter_whose_base_is_elsewhere(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "../other", "peft_type": "LORA"}')
    with pytest.raises(GatewiseError, match="holds an adapter of PEFT"):
        load_model(folder)


# Files that are none


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_not_opened(folder: Path, name: str, kind: str) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(GatewiseError, match=f"{name} is not a regular file"):
        load_model(folder)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_a_gguf_that_is_no_regular_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.gguf"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(GatewiseError, match="is not a regular file"):
        load_model(path)


def sparse(path: Path, head: bytes, size: int) -> None:
    """A file of this size that takes no room on the disk."""
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(size)


def test_a_huge_sparse_file_of_text(folder: Path) -> None:
    sparse(folder / "tokenizer.json", b"{}", 1 << 40)
    with pytest.raises(GatewiseError, match="tokenizer.json is larger than"):
        load_model(folder)


def test_a_huge_sparse_file_of_weights(folder: Path) -> None:
    numbers = 1 << 38
    header = json.dumps({"w": {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}}).encode()
    sparse(folder / "model.safetensors", struct.pack("<Q", len(header)) + header, 8 + len(header) + 4 * numbers)
    with pytest.raises(GatewiseError, match="far more than the .* parameters of its configuration"):
        load_model(folder)


def test_more_parameters_than_the_machine_has_memory(folder: Path) -> None:
    numbers = 1 << 40
    header = json.dumps({"w": {"dtype": "U8", "shape": [numbers], "data_offsets": [0, numbers]}}).encode()
    sparse(folder / "model.safetensors", struct.pack("<Q", len(header)) + header, 8 + len(header) + numbers)
    change_config(folder, vocab_size=1 << 24, n_embd=1 << 14)
    with pytest.raises(GatewiseError, match="this machine has"):
        load_model(folder)


def test_the_command_says_it_in_one_line(folder: Path) -> None:
    change_config(folder, num_labels=10_000_000)
    outcome = CliRunner().invoke(app, ["plan", str(folder)])
    assert isinstance(outcome.exception, GatewiseError)
    assert "'num_labels' is 10000000" in str(outcome.exception)
