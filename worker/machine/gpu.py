"""Talks to the GPU's tools and to the installed packages: what this node's runners compute on.

MLX computes on a GPU of NVIDIA's where there is one and MLX's build for CUDA is installed; the
worker loads no MLX, and asks the driver's tool instead.
"""

from __future__ import annotations

import functools
import platform
import sys
from importlib import metadata

from bus.process.tools import asked

CUDA_BUILDS = ("mlx-cuda-12", "mlx-cuda-13", "mlx-cuda")
"""The packages of which one comes with `mlx[cuda]`."""


def has_metal() -> bool:
    """Return whether runners compute on Apple's GPU here."""
    return sys.platform == "darwin" and platform.machine() == "arm64"


def has_cuda() -> bool:
    """Return whether runners compute on a GPU of NVIDIA's here."""
    return bool(nvidia_bytes()) and any(_is_installed(name) for name in CUDA_BUILDS)


def backends() -> tuple[str, ...]:
    """Return the tags of what runners compute on here, best first."""
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
    """Return what macOS lets its GPU wire down where the operator has set a limit
    (`iogpu.wired_limit_mb`); 0 where that is left to the system, or there is no Metal."""
    if not has_metal():
        return 0
    said = asked("/usr/sbin/sysctl", "-n", "iogpu.wired_limit_mb")
    return int(said) << 20 if said.isdecimal() else 0


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
