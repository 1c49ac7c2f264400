"""`load_model`: from a name, a folder, a Hugging Face id or a loaded transformers model to a `Model`.

Decides where weights come from and brings them into memory; what the weights mean is the adapters' business. Heavy
imports happen inside the functions, so that the list of built-in models can be shown without them.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatewise.errors import GatewiseError
from gatewise.models.config import empty_model, read_config
from gatewise.models.download import DOWNLOADS, fetch, sha256_of
from gatewise.models.transformer_lens import check_bridge, is_bridge, without_hooks

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gatewise.circuits.graph import QKV
    from gatewise.models.model import Model

TINY_FOLDER = Path(__file__).parent / "tiny"

_DTYPES = ("float32", "bfloat16", "float64")
_HUB_TIMEOUT = 5.0  # seconds until a hub that does not answer counts as out of reach
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

    `source` is a built-in name (`gatewise models` lists them), a local folder in Hugging Face's format, the path of a
    .gguf file (dequantised in memory), a Hugging Face id, or a loaded transformers model or TransformerLens 4 bridge,
    which is left as it is: its weights are shared, not changed.
    `dtype` is float32 (default), bfloat16 or float64 and `device` is the CPU unless said otherwise; a loaded model
    keeps its own. `qkv="merged"` gives each head one port instead of three. `trust_pickle` allows weights that are
    not in safetensors files.
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
    folder = _folder_of(source)
    target, label = (folder, folder.name) if folder is not None else (name, name)
    if name in BUILT_IN:
        label = name
    if folder is not None:
        _check_folder(folder, trust_pickle)
        module = _pretrained(target, number_type, trust_pickle)
    else:
        module = _from_hub(name, number_type, trust_pickle)
    found = load_tokenizer(tokenizer if tokenizer is not None else target)
    return _adapt(_move(module, device), found, label, qkv)


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
    if dtype is not None:
        for parameter in view.parameters():
            parameter.data = parameter.data.to(number_type)
    given = str(getattr(module, "name_or_path", "")).rstrip("/")
    name = given.rsplit("/", 1)[-1] if Path(given).is_dir() else given
    found = None if tokenizer is None else load_tokenizer(tokenizer)
    return _adapt(view if device is None else _move(view, device), found, name or type(module).__name__, qkv)


def _from_gguf(path: Path, number_type: torch.dtype, device: Any, qkv: QKV, tokenizer: Any) -> Model:
    import torch
    import transformers

    from gatewise.models.gguf.model import read_gguf

    file = read_gguf(path)
    _check_numbers(sum(math.prod(tensor.shape) for tensor in file.tensors), file.config, path)
    weights = {name: torch.from_numpy(weight).to(number_type) for name, weight in file.weights()}
    settings = {key: value for key, value in file.config.items() if key not in ("model_type", "dtype")}
    config = transformers.AutoConfig.for_model(file.config["model_type"], **settings)
    kind = getattr(transformers, file.family.module)
    module = _loaded(kind, None, path, config=config, state_dict=weights, dtype=number_type)
    found = file.tokenizer().loaded() if tokenizer is None else load_tokenizer(tokenizer)
    return _adapt(_move(module, device), found, path.stem, qkv)


def _frozen_view(module: torch.nn.Module) -> torch.nn.Module:
    """The same module over the same memory, whose parameters need no gradient: the user's module keeps its own."""
    import torch

    shared: dict[int, Any] = {id(buffer): buffer for buffer in module.buffers()}
    for parameter in module.parameters():
        shared[id(parameter)] = torch.nn.Parameter(parameter.detach(), requires_grad=False)
    return copy.deepcopy(module, shared).eval()


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


def _check_folder(folder: Path, trust_pickle: bool) -> None:
    if not (folder / "config.json").is_file():
        raise GatewiseError(
            f"{folder} has no config.json; expected a folder written by transformers' save_pretrained, "
            "with config.json and *.safetensors."
        )
    config = read_config(folder)
    if any(folder.glob("*.safetensors")):
        _check_complete(folder, config)
        return
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    if not pickles:
        raise GatewiseError(f"{folder} has a config.json but no weights; expected *.safetensors beside it.")
    if not trust_pickle:
        raise GatewiseError(
            f"{folder} holds its weights as {pickles[0]}, a pickle file that can run code when it is read; expected "
            "*.safetensors. Convert it, or, if you trust its origin, give trust_pickle=True."
        )


def _check_complete(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse files with fewer numbers than the model has: transformers would make up the rest, however much it is."""
    from safetensors import SafetensorError, safe_open

    held = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                held += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise GatewiseError(f"{path} is not a whole safetensors file: {_one_line(error)} Copy it again.") from error
    _check_numbers(held, config, folder)


def _check_numbers(held: int, config: Mapping[str, Any], source: Path) -> None:
    needed = sum(parameter.numel() for parameter in empty_model(config, source).parameters())
    if held < needed:
        raise GatewiseError(
            f"{source} holds {held:,} numbers, and a model of its configuration has {needed:,}. Copy all of the model."
        )


def _from_hub(name: str, number_type: torch.dtype, trust_pickle: bool) -> Any:
    """A model from the local Hugging Face cache if it is whole there, else from the hub, if the hub answers."""
    try:
        return _pretrained(name, number_type, trust_pickle)
    except GatewiseError:
        _download(name, _ask_hub(name), trust_pickle)
        return _pretrained(name, number_type, trust_pickle)


def _download(name: str, info: Any, trust_pickle: bool) -> None:
    """Bring a model's files into the Hugging Face cache, and compare each with the checksum that the hub gives."""
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.model", "*.txt", *(["*.bin"] if trust_pickle else [])]
    try:
        folder = Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except Exception as error:  # as below
        raise GatewiseError(f"the download of {name!r} failed: {_one_line(error)} Try again.") from error
    for file in info.siblings:
        path = folder / file.rfilename
        if not path.is_file():
            continue
        expected = file.blob_id if file.lfs is None else file.lfs.sha256
        found = _git_hash(path) if file.lfs is None else sha256_of(path)
        if found != expected:
            raise GatewiseError(
                f"{file.rfilename} of {name!r} has the checksum {found}, and the hub says {expected}: the download is "
                f"damaged or was replaced. Remove {folder} and try again."
            )


def _git_hash(path: Path) -> str:
    """The hub's checksum of small files: what git calls a blob."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _ask_hub(name: str) -> Any:
    """What the hub knows about a model, asked once with a short timeout: the loader's own retries take minutes."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    try:
        return HfApi().model_info(name, timeout=_HUB_TIMEOUT, files_metadata=True)
    except GatedRepoError as error:
        raise GatewiseError(
            f"{name!r} is on the Hugging Face hub but gated: accept its terms there and log in with `hf auth login`."
        ) from error
    except RepositoryNotFoundError as error:
        raise GatewiseError(
            f"{name!r} is neither a local folder nor a model that the Hugging Face hub shows you; expected a folder "
            f"with config.json and *.safetensors, {_other_sources(name)}."
        ) from error
    except HfHubHTTPError as error:
        raise GatewiseError(f"the Hugging Face hub refused {name!r}: {_one_line(error)}. Try again later.") from error
    except Exception as error:  # whatever the HTTP library of the day raises when there is no network
        raise GatewiseError(
            f"{name!r} is not whole in the local Hugging Face cache, and the hub cannot be reached "
            f"({type(error).__name__}). Without the network give a folder with config.json and *.safetensors, "
            f"{_other_sources(name)} that was downloaded before."
        ) from error


def _pretrained(target: str | Path, number_type: torch.dtype, trust_pickle: bool) -> Any:
    from transformers import AutoModelForCausalLM

    options = {"use_safetensors": None if trust_pickle else True, "local_files_only": True, "trust_remote_code": False}
    return _loaded(AutoModelForCausalLM, target, target, dtype=number_type, **options)


def _loaded(kind: Any, target: str | Path | None, label: str | Path, **options: Any) -> Any:
    """What transformers makes of a folder, an id, or weights given as `state_dict`, if no weight is missing."""
    try:
        with _quiet():
            module, report = kind.from_pretrained(target, output_loading_info=True, **options)
    except Exception as error:  # transformers, safetensors and pydantic each raise their own
        raise GatewiseError(
            f"transformers could not load a language model from {label}: {_one_line(error)} "
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
    """A tokenizer from a folder or an id, or the one given; None if a folder has none."""
    if not isinstance(source, (str, Path)):
        return source
    folder = Path(source)
    if folder.is_dir() and not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # as above
        raise GatewiseError(
            f"transformers could not load a tokenizer from {source}: {_one_line(error)} "
            "Give one as tokenizer=, or use token ids with Pairs.from_tokens."
        ) from error


def _move(module: Any, device: Any) -> Any:
    import torch

    try:
        return module.to(torch.device(device if device is not None else "cpu"))
    except RuntimeError as error:
        raise GatewiseError(
            f"the model cannot be moved to device {str(device)!r}: {_one_line(error)} Choose another device, or a "
            "smaller dtype."
        ) from error


def check_device(device: Any, number_type: torch.dtype) -> None:
    """Multiply two numbers there: a wrong device or dtype shows before a model is loaded for it."""
    import torch

    place = "cpu" if device is None else device
    try:
        one = torch.ones(1, 1, device=torch.device(place))
    except (RuntimeError, AssertionError, TypeError) as error:
        raise GatewiseError(
            f"cannot use device {str(device)!r}: {_one_line(error)} Expected 'cpu', or a device that this torch "
            f"({torch.__version__}) was built for, such as 'cuda'."
        ) from error
    try:
        torch.mm(one.to(number_type), one.to(number_type))
    except (RuntimeError, TypeError) as error:
        name = str(number_type).removeprefix("torch.")
        raise GatewiseError(
            f"device {str(place)!r} does not compute in {name}: {_one_line(error)} Give dtype='float32'."
        ) from error


def as_number_type(dtype: Any) -> torch.dtype:
    import torch

    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise GatewiseError(f"dtype {dtype!r} was given; expected one of {', '.join(_DTYPES)}.")
    number_type: torch.dtype = getattr(torch, name)
    return number_type


def _one_line(error: Exception) -> str:
    """The first line of what a library says, as a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".:") + "."


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' own progress bars off the screen; loading from disk takes seconds."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
