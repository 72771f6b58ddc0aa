"""Talks to the GPU's tools and to the installed packages: the hardware that this node's runners
use.

MLX uses an NVIDIA GPU if there is one and MLX's CUDA build is installed. The worker does not import
MLX: it looks for MLX's files and runs the driver's tool.
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
"""The packages that contain MLX for CUDA; `mlx[cuda]` installs one of them."""


def has_metal() -> bool:
    """Return whether runners on this node use Apple's GPU."""
    return sys.platform == "darwin" and platform.machine() == "arm64"


def has_cuda() -> bool:
    """Return whether runners on this node use an NVIDIA GPU."""
    return bool(nvidia_bytes()) and any(_is_installed(name) for name in CUDA_BUILDS)


def folders_of(package: str) -> list[Path]:
    """Return the folders with the files of an installed package; none if it is not installed."""
    invalidate_caches()
    spec = find_spec(package)
    locations = None if spec is None else spec.submodule_search_locations
    return [Path(location) for location in locations or ()]


def missing(folders_of: Callable[[str], list[Path]] = folders_of) -> str:
    """Return which part of MLX is not installed, so that no runner can start; empty if none is
    missing. Looks for files and imports nothing."""
    mlx = folders_of("mlx")
    if not any(
        (folder / f"core{suffix}").exists() for folder in mlx for suffix in EXTENSION_SUFFIXES
    ):
        return "mlx"
    if not any(any(folder.glob("lib/libmlx.*")) for folder in mlx):
        return "mlx-metal" if has_metal() else "mlx-cpu"  # or a build for CUDA
    return "" if folders_of("mlx_lm") else "mlx-lm"


def backends() -> tuple[str, ...]:
    """Return the tags of the backends that runners use on this node, best first; none if MLX is
    missing."""
    if missing():
        return ()
    if has_metal():
        return ("mlx-metal",)
    return ("mlx-cuda",) if has_cuda() else ("mlx-cpu",)


@functools.cache
def nvidia_bytes() -> int:
    """Return the bytes of memory of the first NVIDIA GPU, which MLX uses; 0 if there is none."""
    query = ("--query-gpu=memory.total", "--format=csv,noheader,nounits")
    return memory_in(asked("nvidia-smi", *query))


def memory_in(output: str) -> int:
    """Return the memory of the first GPU in `nvidia-smi`'s output, in bytes; 0 without a GPU. The
    output has one line per GPU, in MiB."""
    first = next(iter(output.splitlines()), "").strip()
    return int(first) << 20 if first.isdecimal() else 0


@functools.cache
def working_set_bytes() -> int:
    """Return how much memory macOS lets its GPU wire down, in bytes: the operator's limit
    (`iogpu.wired_limit_mb`) if set, else Metal's recommendation, which a child process asks for.
    Return 0 without Metal, or if both are unknown."""
    if not has_metal():
        return 0
    output = asked("/usr/sbin/sysctl", "-n", "iogpu.wired_limit_mb")
    return working_set_in(
        output, lambda: asked(sys.executable, "-P", "-c", ASK_METAL, timeout_s=METAL_S)
    )


def working_set_in(limit_mb: str, ask_metal: Callable[[], str]) -> int:
    """Return the GPU's memory limit in bytes. `limit_mb` is the operator's limit in MB; 0 is
    macOS's default and means no limit, so Metal's recommendation is returned."""
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
