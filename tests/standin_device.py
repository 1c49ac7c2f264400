"""A stand-in for an accelerator, so that what runs on GPUs is tested without one. For tests only.

`load()` compiles `standin/standin.cpp` (seconds, once per version of torch; kept in the user's cache folder) and gives
torch the devices `standin:0` to `standin:4`. They compute as the CPU does, bit for bit, and refuse what CUDA refuses:
tensors of two devices in one operation. `standin:4` has no float64, as Apple's GPUs have none. `counted()` counts what
costs time on a real accelerator: launches of kernels, times that the host waits, and uploads.

Not modelled: asynchrony, fused kernels, sums in another order, streams.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

SOURCE = Path(__file__).parent / "standin" / "standin.cpp"
ALIKE = 4  # devices that have all dtypes
WITHOUT_FLOAT64 = "standin:4"
_library: ctypes.CDLL | None = None


class NoCompilerError(RuntimeError):
    """The stand-in cannot be compiled here."""


@dataclass
class Counts:
    """What was asked of the devices since counting began; final when it has ended."""

    launches: int = 0
    waits: int = 0  # times that the host had to wait for numbers of a device
    uploads: int = 0
    peak: int = 0  # bytes beyond those that lived before, on the device where they were most


def load() -> None:
    """Give torch the devices `standin:0` to `standin:4`; compiles them where that was not done before.

    Raises:
        NoCompilerError: There is no C++ compiler, or it failed.
    """
    global _library
    if _library is not None:
        return
    path = _compiled()
    rename_privateuse1_backend("standin")
    torch.ops.load_library(str(path))
    library = ctypes.CDLL(str(path))
    for name in ("launches", "waits", "uploads", "live", "peak", "limit"):
        getattr(library, f"standin_{name}").restype = ctypes.c_int64
    library.standin_set_limit.argtypes = [ctypes.c_int, ctypes.c_int64]
    library.standin_seed.argtypes = [ctypes.c_int, ctypes.c_uint64]
    for operation in _operations_without_device_check():
        library.standin_leave_unchecked(operation.encode())
    _library = library
    torch._register_device_module("standin", _device_module(library))
    generate_methods_for_privateuse1_backend()


def load_into_process() -> None:
    """What `torch.backends` calls in processes that start with the folder of `autoload_folder` on their path."""
    load()
    # By this, .to() keeps tied weights tied, as it does on CUDA without it.
    torch.__future__.set_swap_module_params_on_conversion(True)


def autoload_folder(folder: Path) -> str:
    """Make a folder which on PYTHONPATH lets every `import torch` know the stand-in, as vendors' packages do."""
    metadata = folder / "standin-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: standin\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\nstandin = standin_device:load_into_process\n")
    return os.pathsep.join([str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])


@contextmanager
def counted() -> Iterator[Counts]:
    """Count what is asked of all devices meanwhile."""
    library = _loaded()
    devices = range(library.standin_devices())
    counts, before = Counts(), _totals(library)
    live = [library.standin_live(device) for device in devices]
    for device in devices:
        library.standin_forget_peak(device)
    yield counts
    counts.launches, counts.waits, counts.uploads = (
        now - earlier for now, earlier in zip(_totals(library), before, strict=True)
    )
    counts.peak = max(library.standin_peak(device) - live[device] for device in devices)


@contextmanager
def lines_counted(root: Path) -> Iterator[Counter[tuple[str, str, str]]]:
    """Count by kind, line of Python below a folder, and operation: where an accelerator would be kept waiting."""
    library, counter = _loaded(), Counter[tuple[str, str, str]]()

    def note(kind: bytes, operation: bytes) -> None:
        frame: types.FrameType | None = sys._getframe()
        while frame is not None and not frame.f_code.co_filename.startswith(str(root)):
            frame = frame.f_back
        line = "a backward pass" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        counter[kind.decode(), line, operation.decode()] += 1

    callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)(note)
    library.standin_listen(callback)
    try:
        yield counter
    finally:
        library.standin_listen(None)


@contextmanager
def limited_memory(device: int, more: int) -> Iterator[None]:
    """Let a device have so many bytes beside those that it holds now; what goes beyond is out of memory."""
    library = _loaded()
    library.standin_set_limit(device, library.standin_live(device) + more)
    try:
        yield
    finally:
        library.standin_set_limit(device, 0)


def _loaded() -> ctypes.CDLL:
    assert _library is not None, "call standin_device.load() first"
    return _library


def _totals(library: ctypes.CDLL) -> list[int]:
    counters = (library.standin_launches, library.standin_waits, library.standin_uploads)
    return [sum(counter(device) for device in range(library.standin_devices())) for counter in counters]


def _compiled() -> Path:
    """The library in the cache folder, made if it is not there."""
    digest = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode() + sys.platform.encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gatewise-tests"
    path = cache / f"standin-{digest[:16]}.so"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = cache / f"{path.name}.{os.getpid()}"
        _compile(unfinished)
        unfinished.replace(path)
    return path


def _compile(target: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise NoCompilerError("the stand-in accelerator needs g++ or clang++, and neither is here")
    torch_folder = Path(torch.__file__).parent
    include, libraries = torch_folder / "include", torch_folder / "lib"
    command = [compiler, "-std=c++20", "-O1", "-fPIC", "-shared", "-w", str(SOURCE), "-o", str(target)]
    command += [f"-I{include}", f"-I{include}/torch/csrc/api/include", f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
    command += ["-ltorch_cpu", "-lc10", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NoCompilerError(f"{compiler} could not compile the stand-in accelerator: {done.stderr.strip()[-2000:]}")


def _operations_without_device_check() -> list[str]:
    """Operations for which torch leaves it to their kernel on CUDA which devices may meet."""
    import torchgen  # type: ignore[import-untyped]

    table = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"
    names = []
    for block in re.split(r"\n(?=- func:)", table.read_text()):
        if "device_check: NoCheck" in block:
            names.append("aten::" + block.split("- func:")[1].split("(")[0].strip())
    return names


def _device_module(library: ctypes.CDLL) -> types.ModuleType:
    """What torch asks of `torch.standin`, as of `torch.cuda`."""

    def index_of(device: Any = None) -> int:
        given = torch.device("standin", device) if isinstance(device, int) else torch.device(device or "standin")
        return library.standin_current() if given.index is None else given.index

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        index = index_of(device)
        total = library.standin_limit(index) or 64 << 30
        return total - library.standin_live(index), total

    def manual_seed_all(seed: int) -> None:
        for index in range(library.standin_devices()):
            library.standin_seed(index, seed)

    module: Any = types.ModuleType("torch.standin")
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module._lazy_init = module.empty_cache = lambda: None
    module.device_count = library.standin_devices
    module.current_device = library.standin_current
    module.set_device = lambda device: library.standin_set_current(index_of(device))
    module.synchronize = lambda device=None: None
    module.manual_seed = lambda seed: library.standin_seed(library.standin_current(), seed)
    module.manual_seed_all = manual_seed_all
    module.mem_get_info = mem_get_info
    module.get_amp_supported_dtype = lambda: [torch.float32, torch.bfloat16, torch.float16]
    return module
