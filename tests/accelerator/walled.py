"""The walled device: built from `device/*.cpp` when first asked for, kept in `build/` by its source and torch's version.

Its kernels are the CPU's, its memory is not: an address of the device may not be touched by the host. Whatever reads or
writes a tensor's bytes by their address, as one may on the CPU, ends the process.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import subprocess
import sys
import time
import types
from pathlib import Path

import torch

NAME = "walled"
SOURCES = Path(__file__).parent / "device"
BUILDS = Path(__file__).parents[2] / "build" / "walled"


class NoCompilerError(Exception):
    """There is nothing to build the device with."""


def library() -> Path:
    """The compiled extension, made if need be."""
    if sys.platform != "linux":
        raise NoCompilerError("the walled device is made for Linux")
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise NoCompilerError("no C++ compiler was found to build the walled device")
    from torch.utils import cpp_extension

    sources = sorted(SOURCES.glob("*.cpp"))
    flags = [
        "-std=c++20",
        "-O1",
        "-fPIC",
        "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]
    flags += [f"-I{path}" for path in cpp_extension.include_paths()]
    known = hashlib.sha256(" ".join([torch.__version__, compiler, *flags]).encode())
    for path in sorted(SOURCES.iterdir()):
        known.update(path.name.encode() + path.read_bytes())
    made = BUILDS / f"{NAME}-{torch.__version__}-{known.hexdigest()[:12]}.so"
    if made.exists():
        return made
    # Several test processes may build at once: each in its own folder, and the last to finish wins.
    work = BUILDS / f"work-{os.getpid()}"
    work.mkdir(parents=True, exist_ok=True)
    try:
        running = [
            subprocess.Popen([compiler, *flags, "-c", str(path), "-o", str(work / f"{path.stem}.o")])
            for path in sources
        ]
        failed = [path.name for path, one in zip(sources, running, strict=True) if one.wait() != 0]
        if failed:
            raise RuntimeError(f"{compiler} could not compile {', '.join(failed)}")
        objects = [str(work / f"{path.stem}.o") for path in sources]
        libraries = [f"-L{path}" for path in cpp_extension.library_paths()]
        command = [
            compiler,
            "-shared",
            *objects,
            *libraries,
            "-lc10",
            "-ltorch_cpu",
            "-o",
            str(work / made.name),
        ]
        subprocess.run(command, check=True)
        (work / made.name).replace(made)
    finally:
        shutil.rmtree(work)
    return made


def register() -> torch.device:
    """Load it, and tell PyTorch its name."""
    if not hasattr(torch, NAME):
        torch.ops.load_library(library())
        torch.utils.rename_privateuse1_backend(NAME)
        torch._register_device_module(NAME, _module())
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
        # The engine's thread lets go of a graph a little after backward(): when Python is ending, that would abort it.
        atexit.register(time.sleep, 0.1)
    return torch.device(NAME, 0)


def _module() -> types.ModuleType:
    """What PyTorch looks for under `torch.walled`."""
    from contextlib import nullcontext

    module = types.ModuleType(f"torch.{NAME}")

    def manual_seed(seed: int) -> None:
        torch.ops.walled.seed(seed)

    def set_rng_state(state: torch.Tensor, device: object = None) -> None:
        torch.ops.walled.set_rng_state(state)

    module.is_initialized = module.is_available = lambda: True  # type: ignore[attr-defined]
    module._is_in_bad_fork = lambda: False  # type: ignore[attr-defined]
    module.device_count = lambda: 1  # type: ignore[attr-defined]
    module.current_device = lambda: 0  # type: ignore[attr-defined]
    module.set_device = module.synchronize = lambda device=None: None  # type: ignore[attr-defined]
    module.device = module._DeviceGuard = lambda index: nullcontext()  # type: ignore[attr-defined]
    module.get_rng_state = lambda device=None: torch.ops.walled.rng_state()  # type: ignore[attr-defined]
    module.set_rng_state = set_rng_state  # type: ignore[attr-defined]
    module.manual_seed = module.manual_seed_all = manual_seed  # type: ignore[attr-defined]
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]  # type: ignore[attr-defined]
    return module
