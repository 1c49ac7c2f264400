"""`config.json`: read within limits, and the model it describes without weights, on torch's meta device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gatewise.errors import GatewiseError, first_line
from gatewise.files import parse_json, read_bytes, shown
from gatewise.models.config_keys import check_undeclared

_MOST_BYTES = 8 << 20  # real ones have some thousands
_MOST_MEMBERS = 100_000  # of a list or a table
_DEEPEST = 16
_LARGEST = {  # a hostile number of layers would be built one by one
    **dict.fromkeys(("n_layer", "num_hidden_layers", "num_layers"), 1_000),
    **dict.fromkeys(("n_head", "num_attention_heads", "num_key_value_heads", "num_heads"), 1_000),
    **dict.fromkeys(("n_embd", "hidden_size", "head_dim"), 1 << 20),
    **dict.fromkeys(("n_inner", "ffn_dim", "intermediate_size", "vocab_size"), 1 << 24),
    **dict.fromkeys(("n_positions", "max_position_embeddings"), 1 << 30),
}
# The same for whatever else something could be made of, at any depth, by a word in the key; the first that fits.
_WORDS = {
    "label": 100_000,
    **dict.fromkeys(("head_dim", "head_size"), 1 << 20),
    **dict.fromkeys(("layer", "head", "block", "expert", "stage", "depth", "types"), 1_000),
    **dict.fromkeys(("position", "length", "window", "theta", "ctx"), 1 << 40),
    **dict.fromkeys(("embd", "hidden", "dim", "width", "channel"), 1 << 20),
    **dict.fromkeys(("inner", "intermediate", "size", "token"), 1 << 24),
}
_NUMBER = 1 << 62  # of what nothing is made of


def read_config(folder: Path) -> dict[str, Any]:
    """Read a folder's config.json, and refuse sizes that no model has."""
    path = folder / "config.json"
    if not path.is_file():
        raise GatewiseError(
            f"{folder} has no config.json; expected a folder written by transformers' save_pretrained, "
            "with config.json and *.safetensors."
        )
    what = "a config.json as transformers' save_pretrained writes it"
    content = parse_json(read_bytes(path, what, _MOST_BYTES), path, what)
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise GatewiseError(f"{path} has no 'model_type'; expected what transformers' save_pretrained writes.")
    check_config(content, path)
    return content


def check_config(content: Mapping[str, Any], path: str | Path) -> None:
    """Refuse what would make something that no model has, or load something else, before anything is made.

    Args:
        content: Of a config.json.
        path: Named in errors.

    Raises:
        GatewiseError: A size is too large, at any depth, or a key has transformers load other code or weights.
    """
    for key, most in _LARGEST.items():
        value = content.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most):
            raise GatewiseError(f"{path}: {key} is {shown(value)}; expected a whole number from 1 to {most:,}.")
    for key, value in content.items():
        _check_value(key, value, path, _DEEPEST)
    check_undeclared(content, path)


def _check_value(key: str, value: Any, path: str | Path, depth: int) -> None:
    """Refuse large numbers of anything, and long or deep lists and tables."""
    if isinstance(value, int) and abs(value) > _most(key):
        raise GatewiseError(f"{path}: {shown(key)} is {shown(value)}; expected a whole number up to {_most(key):,}.")
    if not isinstance(value, (dict, list)):
        return
    if depth == 0 or len(value) > _MOST_MEMBERS:
        raise GatewiseError(f"{path}: {shown(key)} is nested too deeply, or has more than {_MOST_MEMBERS:,} members.")
    members = value.items() if isinstance(value, dict) else ((key, member) for member in value)
    for name, member in members:
        _check_value(name, member, path, depth - 1)


def _most(key: str) -> int:
    return _LARGEST.get(key) or next((most for word, most in _WORDS.items() if word in key), _NUMBER)


def config_of(content: Mapping[str, Any], path: str | Path) -> Any:
    """Make transformers' config object of the content of a config.json, whose sizes are checked first."""
    from transformers import CONFIG_MAPPING

    check_config(content, path)
    settings = {key: value for key, value in content.items() if key != "auto_map"}
    try:
        return CONFIG_MAPPING[content["model_type"]].from_dict(settings)
    except Exception as error:  # transformers and pydantic each raise their own
        raise GatewiseError(
            f"transformers could not make a config out of {path}: {first_line(error)}. Check the file, and that it is "
            f"a decoder whose code is part of transformers."
        ) from error


def empty_model(content: Mapping[str, Any], path: str | Path) -> Any:
    """Make the transformers module of a configuration on the meta device: shapes and no numbers."""
    import torch
    from transformers import AutoModelForCausalLM

    config = config_of(content, path)
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # as above
        raise GatewiseError(
            f"transformers could not make a language model out of {path}: {first_line(error)}. Check the file, and "
            f"that it is a decoder whose code is part of transformers."
        ) from error
