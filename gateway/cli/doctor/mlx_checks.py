"""Talks to a process that imports MLX, and to the file of BLAS measurements: checks that this
machine can run models, and how fast.

MLX is imported in a separate process, because a broken MLX may crash it.
The BLAS library matters only if MLX computes on the CPU.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import dataclass

from bus.process.installation import pip_line
from bus.process.tools import asked
from conf.blas import INSTALL_HINT, choose, known_blas, told, told_gains, told_measurement
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
    """MLX on this machine. If MLX cannot compute, `trouble` says why and `remedy` says what to do.
    Both are empty if MLX can compute."""

    version: str = ""
    device: str = ""
    trouble: str = ""
    remedy: str = ""

    @property
    def is_on_gpu(self) -> bool:
        """Return whether MLX computes on a GPU, Apple's or NVIDIA's."""
        return "gpu" in self.device


def mlx(_settings: Settings, _running: bool) -> Finding:
    """Check that MLX computes. If the machine has an NVIDIA GPU, also check that MLX uses that
    GPU."""
    here = mlx_here()
    if here.trouble:
        return Finding("mlx", "error", here.trouble, here.remedy)
    text = f"{here.version} on {here.device}"
    if not here.is_on_gpu and (gpus := asked("nvidia-smi", *NVIDIA_NAMES)):
        build = f"mlx-cuda-13=={here.version}"
        remove = pip_line("uninstall", "mlx-cpu")
        remedy = (
            f"install the CUDA build of MLX: `{remove}`, then `{pip_line('install', build)}` "
            "(mlx-cuda-12 for a CUDA 12 driver)"
        )
        return Finding("mlx", "warn", f"{text}, although there is a {gpus.splitlines()[0]}", remedy)
    return Finding("mlx", "ok", text)


def blas(settings: Settings, _running: bool) -> Finding:
    """Check the BLAS library in use. Report how much faster it is, and how much faster or slower
    the other value of `runner.parity` would be."""
    if sys.platform != "linux":
        return Finding("BLAS", "ok", "not needed here")
    here = mlx_here()
    if here.is_on_gpu:
        return Finding("BLAS", "ok", f"not needed: MLX computes on {here.device}")
    if settings.runner.blas == "off":
        return Finding("BLAS", "ok", "MLX's own BLAS (runner.blas = off); prompts are slow")
    outcome, runner = known_blas(settings), settings.runner
    if outcome.choice is None:
        text = outcome.trouble or "OpenBLAS is missing"
        text += "; without a BLAS library prompts are about 40 times slower"
        return Finding("BLAS", "warn", text, outcome.remedy or INSTALL_HINT)
    text = told(outcome.choice)
    other = "fast" if runner.parity == "exact" else "exact"
    rival = choose(outcome.table.measured, other, runner.blas_threads)
    if rival is not None:
        text += f"; {runner.parity} {told_gains(outcome.choice)}"
        text += f"; {other} {rival.gains[0][1]:.1f} x at 1 row"
    if outcome.table.measured_at_s:
        text += f"; {told_measurement(outcome.table)}"
    if outcome.trouble:
        return Finding("BLAS", "warn", f"{text}; {outcome.trouble}", outcome.remedy)
    return Finding("BLAS", "ok", text)


@functools.cache
def mlx_here() -> MlxHere:
    """Import MLX in a separate process and return its version and device. The result is cached."""
    try:
        done = processes.run_tool(IMPORT_TIMEOUT_S, sys.executable, "-P", "-c", _PROBE)
    except subprocess.TimeoutExpired:
        trouble = "MLX computed nothing within 60 s"
        return MlxHere(trouble=trouble, remedy="reinstall mlx")
    if done.returncode != 0:
        package = "mlx" if sys.platform == "darwin" else "mlx[cpu]"
        remedy = f"reinstall it with `{pip_line('install', '--force-reinstall', package)}`"
        return MlxHere(trouble=processes.last_words(done), remedy=remedy)
    version, device = json.loads(done.stdout.splitlines()[-1])
    return MlxHere(version, device)
