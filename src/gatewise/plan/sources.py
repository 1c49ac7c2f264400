"""From a name or a folder to a model without weights, and pairs of the length that a task has on it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gatewise.errors import GatewiseError, GatewiseWarning
from gatewise.models.config import empty_model, read_config
from gatewise.models.download import DOWNLOADS, cached
from gatewise.models.gguf.model import read_gguf
from gatewise.models.loader import TINY_FOLDER, as_number_type, load_tokenizer
from gatewise.models.model import Model
from gatewise.models.transformer import adapt, adapter_for
from gatewise.plan.shapes import KNOWN, known_shape
from gatewise.tasks import task as make_task
from gatewise.tasks.pairs import Pairs
from gatewise.tasks.registry import parse_name

_TYPICAL = {"ioi": (20, 7), "gt": (19, 8), "sa": (6, 3)}  # tokens, and columns from the first difference on: SmolLM2's
_NAMES = {  # where a built-in name's shape is, while it is not fetched
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M",
    "gemma3-270m": "google/gemma-3-270m",
}


@dataclass(frozen=True, eq=False)
class Subject:
    """What is planned for."""

    model: Model  # on the meta device
    measured_tokens: bool  # True: its own tokenizer made the pairs; False: their length is the usual one
    pairs: Pairs


def subject(
    source: str,
    task: str,
    examples: int,
    dtype: str,
    *,
    device: str = "cpu",
    bos: bool | None = None,
    first_token: bool = False,
) -> Subject:
    """Make a model without weights and the pairs of a task for it, by config.json, a GGUF file or a well-known name.

    device: the kind of device that it stands for.
    """
    name, config, tokenizer_source = _config(source)
    adapter_for(config["model_type"])  # before anything of the model is made
    module = empty_model(config, name).to(as_number_type(dtype))
    tokenizer = None if tokenizer_source is None else load_tokenizer(tokenizer_source)
    model = replace(adapt(module, tokenizer=tokenizer, name=name), planned_for=device)
    if tokenizer is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GatewiseWarning)  # said when the task is used
            made = make_task(task, model, examples=examples, bos=bos, first_token=first_token)
        return Subject(model, True, made.train)
    short, options = parse_name(task)
    if short not in _TYPICAL:
        raise GatewiseError(
            f"there is no tokenizer for {name}, so the length of {task!r} on it is not known; the length is known for "
            f"{', '.join(_TYPICAL)}. Give a folder with config.json and tokenizer.json, or one of these tasks."
        )
    width, window = _TYPICAL[short]
    if options.get("corruption") == "all-names":
        window = width - 1  # the first name comes early in some templates
    clean = torch.zeros(examples, width, dtype=torch.long)
    corrupted = clean.clone()
    corrupted[:, -window:] = 1
    return Subject(model, False, Pairs.from_tokens(clean, corrupted, [1] * examples, [2] * examples, name=task))


def _config(source: str) -> tuple[str, dict[str, Any], Any]:
    """Return the name, the configuration, and where the tokenizer is, or itself, if there is one."""
    if source.startswith("synthetic:"):
        raise GatewiseError(f"{source} has a handful of edges and needs no plan; just run it.")
    if source == "tiny":
        return source, read_config(TINY_FOLDER), TINY_FOLDER
    fetched = cached(source) if source in DOWNLOADS else None
    if fetched is not None:
        return source, read_config(fetched), fetched
    path = Path(source).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise GatewiseError(f"{path} has no config.json; expected a folder with one. No weights are needed.")
        return path.resolve().name, read_config(path), path
    if source.lower().endswith(".gguf"):
        file = read_gguf(path)
        return path.stem, file.config, file.tokenizer().loaded()
    known = known_shape(_NAMES.get(source, source))
    if known is None:
        raise GatewiseError(
            f"{source!r} is neither a folder, nor a .gguf file, nor one of the models whose shape we know "
            f"({', '.join(sorted(KNOWN))}). "
            f"Download its config.json alone (and tokenizer.json, if you like) and give the folder: no weights needed."
        )
    return *known, None
