"""Talks to MLX, in a process of its own, and to what was measured of BLAS: what the doctor says of
that by which runners compute.

Only runners import MLX, and a broken one may crash. BLAS matters where MLX computes on the
processor; on a GPU nothing is said of it.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass

from bus.process.tools import asked
from conf.blas import INSTALL_HINT, choose, known_blas, told, told_gains
from conf.settings import Settings
from gateway.cli.doctor.check import Finding
from gateway.cli.node import processes

IMPORT_TIMEOUT_S = 60.0
NVIDIA_NAMES = ("--query-gpu=name", "--format=csv,noheader")
_PROBE = (
    "import json, mlx.core as mx; a = mx.ones((8, 8)); mx.eval(a @ a);"
    "print(json.dumps([mx.__version__, str(mx.default_device())]))"
)


@dataclass(frozen=True, slots=True)
class MlxHere:
    """What MLX says of itself, or in `trouble` why it computes nothing, and the `remedy`."""

    version: str = ""
    device: str = ""
    trouble: str = ""
    remedy: str = ""

    @property
    def is_on_gpu(self) -> bool:
        """Return whether it computes on a GPU, Apple's or NVIDIA's."""
        return "gpu" in self.device


def mlx(_settings: Settings, _running: bool) -> Finding:
    """Check that MLX computes, and on the GPU where there is one of NVIDIA's."""
    here = mlx_here()
    if here.trouble:
        return Finding("mlx", "error", here.trouble, here.remedy)
    found = f"{here.version} on {here.device}"
    if not here.is_on_gpu and (gpus := asked("nvidia-smi", *NVIDIA_NAMES)):
        build = f"mlx-cuda-13=={here.version}"
        remedy = (
            f"install the CUDA build of MLX: pip uninstall mlx-cpu; pip install {build} "
            "(mlx-cuda-12 for a CUDA 12 driver)"
        )
        return Finding(
            "mlx", "warn", f"{found}, although there is a {gpus.splitlines()[0]}", remedy
        )
    return Finding("mlx", "ok", found)


def blas(settings: Settings, _running: bool) -> Finding:
    """Check what multiplies matrices here: what was chosen, what it gains, and what the other
    `runner.parity` would."""
    if sys.platform != "linux":
        return Finding("BLAS", "ok", "not needed here")
    here = mlx_here()
    if here.is_on_gpu:
        return Finding("BLAS", "ok", f"not needed: MLX computes on {here.device}")
    if settings.runner.blas == "off":
        return Finding("BLAS", "ok", "MLX's own BLAS (runner.blas = off); prompts are slow")
    known, runner = known_blas(settings), settings.runner
    if known.choice is None:
        found = "OpenBLAS is missing; without it prompts are about 40 times slower"
        return Finding("BLAS", "warn", found, INSTALL_HINT)
    found = told(known.choice)
    other = "fast" if runner.parity == "exact" else "exact"
    rival = choose(known.table.measured, other, runner.blas_threads)
    if rival is not None:
        found += f"; {runner.parity} {told_gains(known.choice)}"
        found += f"; {other} {rival.gains[0][1]:.1f} x at 1 row"
    if known.trouble:
        return Finding("BLAS", "warn", f"{found}; {known.trouble}", known.remedy)
    return Finding("BLAS", "ok", found)


@functools.cache
def mlx_here() -> MlxHere:
    """Return what MLX says here, asked once."""
    try:
        done = processes.ran(IMPORT_TIMEOUT_S, sys.executable, "-P", "-c", _PROBE)
    except subprocess.TimeoutExpired:
        trouble = "MLX computed nothing within 60 s"
        return MlxHere(trouble=trouble, remedy="reinstall mlx")
    if done.returncode != 0:
        package = "mlx" if sys.platform == "darwin" else "'mlx[cpu]'"
        remedy = f"reinstall it with `pip install --force-reinstall {package}`"
        return MlxHere(trouble=processes.last_words(done), remedy=remedy)
    version, device = json.loads(done.stdout.splitlines()[-1])
    return MlxHere(version, device)
