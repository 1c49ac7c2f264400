"""Models of the hub, against a hub of the tests' own on the loopback interface: what is used was verified."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from gatewise.errors import GatewiseError
from gatewise.models import load_model
from gatewise.models.hub import hub_folder
from gatewise.models.loader import TINY_FOLDER, load_tokenizer

pytestmark = pytest.mark.attack

NAME = "someone/small-model"
COMMIT = "1" * 40


class Hub:
    """Files of one model, what is said to be their checksums, and how often they were asked for."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.sent = dict(files)  # what a download gives
        self.requests: list[str] = []

    def checksum(self, name: str) -> str:
        content = self.files[name]
        if name.endswith(".safetensors"):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()

    def description(self) -> bytes:
        siblings: list[dict[str, Any]] = []
        for name, content in self.files.items():
            large = {"sha256": self.checksum(name), "size": len(content), "pointerSize": 1}
            extra = {"lfs": large} if name.endswith(".safetensors") else {}
            siblings.append({"rfilename": name, "size": len(content), "blobId": self.checksum(name), **extra})
        return json.dumps({"id": NAME, "modelId": NAME, "sha": COMMIT, "siblings": siblings, "tags": []}).encode()

    def tree(self) -> bytes:
        entries: list[dict[str, Any]] = []
        for name, content in self.files.items():
            large = {"oid": self.checksum(name), "size": len(content), "pointerSize": 1}
            extra = {"lfs": large} if name.endswith(".safetensors") else {}
            entries.append({"type": "file", "path": name, "oid": self.checksum(name), "size": len(content), **extra})
        return json.dumps(entries).encode()


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        self.hub.requests.append(path)
        name = path.rpartition("/")[2]
        if "/tree/" in path:
            self.reply(200, self.hub.tree(), {"Content-Type": "application/json"}, body)
        elif path.startswith("/api/models/"):
            self.reply(200, self.hub.description(), {"Content-Type": "application/json"}, body)
        elif "/resolve/" in path and name in self.hub.sent:
            headers = {"ETag": f'"{self.hub.checksum(name)}"', "X-Repo-Commit": COMMIT}
            self.reply(200, self.hub.sent[name], headers, body)
        else:
            self.reply(404, b"", {"X-Error-Code": "EntryNotFound"}, body)

    def reply(self, status: int, content: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=29, n_embd=8, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "source")
    files = {path.name: path.read_bytes() for path in (tmp_path / "source").iterdir()}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        files[name] = (TINY_FOLDER / name).read_bytes()
    kind = type("OwnHandler", (Handler,), {"hub": Hub(files)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("GATEWISE_CACHE", str(tmp_path / "gatewise-cache"))
    try:
        yield kind.hub  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()


def flip_last_byte(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")


def blobs(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "hub-cache").rglob("blobs/*"))


def test_a_model_is_downloaded_once(hub: Hub) -> None:
    assert load_model(NAME).graph.n_heads == 2
    hub.requests.clear()
    model = load_model(NAME)
    assert (model.name, model.tokenizer is not None) == (NAME, True)
    assert hub.requests == []


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_wrong_checksum_is_refused_every_time(hub: Hub, tmp_path: Path, name: str) -> None:
    """The second start found the file in the cache, and used it."""
    hub.sent[name] = flip_last_byte(hub.files[name])
    for _ in range(2):
        with pytest.raises(GatewiseError, match=f"{name} of '{NAME}', which has the checksum .*It was removed"):
            load_model(NAME)
        assert not any(path.name == hub.checksum(name) for path in blobs(tmp_path))
    hub.sent[name] = hub.files[name]
    assert load_model(NAME).graph.n_heads == 2


def test_a_download_that_was_killed_before_it_was_compared(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.sent["model.safetensors"] = flip_last_byte(hub.files["model.safetensors"])
    huggingface_hub.snapshot_download(NAME)  # and then the end
    out_of_reach(monkeypatch)
    with pytest.raises(GatewiseError, match="which has the checksum .*and the cache keeps it as"):
        load_model(NAME)
    with pytest.raises(GatewiseError, match="the hub cannot be reached"):  # it is no longer there
        load_model(NAME)


def test_what_others_downloaded_is_compared_without_the_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub.snapshot_download(NAME)
    out_of_reach(monkeypatch)
    assert load_model(NAME).graph.n_heads == 2


def test_a_file_without_a_checksum_is_not_used(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(huggingface_hub.snapshot_download(NAME))
    (folder / "chat_template.jinja").write_text("planted")
    out_of_reach(monkeypatch)
    with pytest.raises(GatewiseError, match="nothing there says what its checksum is"):
        load_model(NAME)
    monkeypatch.undo()


def test_a_file_that_the_hub_does_not_list_is_removed(hub: Hub) -> None:
    folder = Path(huggingface_hub.snapshot_download(NAME))
    (folder / "chat_template.jinja").write_text("planted")
    with pytest.raises(GatewiseError, match="which the hub does not list"):
        load_model(NAME)
    assert load_model(NAME).graph.n_heads == 2


def test_a_file_that_changes_after_it_was_compared_is_compared_again(hub: Hub, tmp_path: Path) -> None:
    load_model(NAME)
    (blob,) = (path for path in blobs(tmp_path) if path.name == hub.checksum("model.safetensors"))
    blob.write_bytes(flip_last_byte(hub.files["model.safetensors"]))
    with pytest.raises(GatewiseError, match="which has the checksum"):
        load_model(NAME)


def test_a_tokenizer_alone_is_verified_too(hub: Hub) -> None:
    hub.sent["tokenizer.json"] = flip_last_byte(hub.files["tokenizer.json"])
    with pytest.raises(GatewiseError, match="tokenizer.json of .*which has the checksum"):
        load_tokenizer(NAME)
    assert not any(path.endswith(".safetensors") for path in hub.requests)
    hub.sent["tokenizer.json"] = hub.files["tokenizer.json"]
    assert load_tokenizer(NAME) is not None
    assert (hub_folder(NAME, "a folder") / "model.safetensors").is_file()  # the weights are missing until then
