"""Talks to the GPU's tools and to the installed packages: what this node's runners compute on.

MLX computes on a GPU of NVIDIA's where there is one and MLX's build for CUDA is installed; the
worker loads no MLX: it looks for MLX's files, and asks the driver's tool.
"""

from __future__ import annotations

import functools
import platform
import sys
from collections.abc import Callable
from importlib import invalidate_caches, metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

from bus.process.tools import asked

ASK_METAL = (
    "import mlx.core as mx; info = getattr(mx, 'device_info', None) or mx.metal.device_info;"
    "print(info()['max_recommended_working_set_size'])"
)
METAL_S = 30.0
CUDA_BUILDS = ("mlx-cuda-12", "mlx-cuda-13", "mlx-cuda")
"""The packages of which one comes with `mlx[cuda]`."""


def has_metal() -> bool:
    """Return whether runners compute on Apple's GPU here."""
    return sys.platform == "darwin" and platform.machine() == "arm64"


def has_cuda() -> bool:
    """Return whether runners compute on a GPU of NVIDIA's here."""
    return bool(nvidia_bytes()) and any(_is_installed(name) for name in CUDA_BUILDS)


def folders_of(package: str) -> list[Path]:
    """Return the folders in which a package's files lie; none where it is not installed."""
    invalidate_caches()
    spec = find_spec(package)
    found = None if spec is None else spec.submodule_search_locations
    return [Path(one) for one in found or ()]


def missing(folders_of: Callable[[str], list[Path]] = folders_of) -> str:
    """Return what of MLX is not installed here, so that no runner can start; empty where all is.
    Nothing is imported: a package's files are looked for."""
    mlx = folders_of("mlx")
    if not any((one / f"core{suffix}").exists() for one in mlx for suffix in EXTENSION_SUFFIXES):
        return "mlx"
    if not any(any(one.glob("lib/libmlx.*")) for one in mlx):
        return "mlx-metal" if has_metal() else "mlx-cpu"  # or a build for CUDA
    return "" if folders_of("mlx_lm") else "mlx-lm"


def backends() -> tuple[str, ...]:
    """Return the tags of what runners compute on here, best first; none where MLX is missing."""
    if missing():
        return ()
    if has_metal():
        return ("mlx-metal",)
    return ("mlx-cuda",) if has_cuda() else ("mlx-cpu",)


@functools.cache
def nvidia_bytes() -> int:
    """Return the memory of the first NVIDIA GPU, the one that MLX takes; 0 where there is none."""
    query = ("--query-gpu=memory.total", "--format=csv,noheader,nounits")
    return memory_in(asked("nvidia-smi", *query))


def memory_in(said: str) -> int:
    """Return the bytes in what `nvidia-smi` says of its GPUs' memory, in MiB, a line for each."""
    first = next(iter(said.splitlines()), "").strip()
    return int(first) << 20 if first.isdecimal() else 0


@functools.cache
def working_set_bytes() -> int:
    """Return what macOS lets its GPU wire down: the operator's limit (`iogpu.wired_limit_mb`)
    where there is one, else what Metal recommends, asked in a process of its own; 0 without Metal,
    or where neither says."""
    if not has_metal():
        return 0
    said = asked("/usr/sbin/sysctl", "-n", "iogpu.wired_limit_mb")
    return working_set_in(
        said, lambda: asked(sys.executable, "-P", "-c", ASK_METAL, timeout_s=METAL_S)
    )


def working_set_in(limit_mb: str, ask_metal: Callable[[], str]) -> int:
    """Return the bytes that a limit in MB stands for; 0, as every Mac has it that was left alone,
    is no limit, and then it is what Metal says."""
    if limit_mb.isdecimal() and int(limit_mb):
        return int(limit_mb) << 20
    recommended = ask_metal()
    return int(recommended) if recommended.isdecimal() else 0


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
