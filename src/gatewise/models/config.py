"""`config.json`: read within limits, and the model it describes without weights, on torch's meta device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gatewise.errors import GatewiseError, first_line
from gatewise.files import read_json, shown

_LARGEST = {  # a hostile number of layers would be built one by one
    **dict.fromkeys(("n_layer", "num_hidden_layers"), 1_000),
    **dict.fromkeys(("n_head", "num_attention_heads", "num_key_value_heads"), 1_000),
    **dict.fromkeys(("n_embd", "hidden_size", "head_dim"), 1 << 20),
    **dict.fromkeys(("n_inner", "intermediate_size", "vocab_size"), 1 << 24),
    **dict.fromkeys(("n_positions", "max_position_embeddings"), 1 << 30),
}


def read_config(folder: Path) -> dict[str, Any]:
    """Read a folder's config.json, and refuse sizes that no model has."""
    path = folder / "config.json"
    content = read_json(path, "a config.json as transformers' save_pretrained writes it")
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise GatewiseError(f"{path} has no 'model_type'; expected what transformers' save_pretrained writes.")
    check_config(content, path)
    return content


def check_config(content: Mapping[str, Any], path: str | Path) -> None:
    """Refuse sizes that no model has, before something of that size is made; `path` is named in errors."""
    for key, most in _LARGEST.items():
        value = content.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most):
            raise GatewiseError(f"{path}: {key} is {shown(value)}; expected a whole number from 1 to {most:,}.")


def empty_model(content: Mapping[str, Any], path: str | Path) -> Any:
    """Make the transformers module of a configuration on the meta device: shapes and no numbers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    check_config(content, path)
    settings = {key: value for key, value in content.items() if key not in ("auto_map", "model_type")}
    try:
        config = AutoConfig.for_model(content["model_type"], **settings)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # transformers and pydantic each raise their own
        raise GatewiseError(
            f"transformers could not make a language model out of {path}: {first_line(error)}. Check the file, and "
            f"that it is a decoder whose code is part of transformers."
        ) from error
