"""Talks to a process that imports MLX, and to the file of BLAS measurements: checks that this
machine can run models, and how fast.

MLX is imported in a separate process, because a broken MLX may crash it.
The BLAS library matters only if MLX computes on the CPU.
"""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata

from bus.process.installation import own_pip
from bus.process.tools import asked
from conf.blas import INSTALL_HINT, choose, known_blas, told, told_gains, told_measurement
from conf.settings import Settings
from gateway.cli.doctor.check import Finding, Fix
from gateway.cli.node import processes

IMPORT_TIMEOUT_S = 60.0
NVIDIA = ("--query-gpu=name,driver_version", "--format=csv,noheader")
BUILDS = ((580, "mlx-cuda-13"), (525, "mlx-cuda-12"))
"""The oldest NVIDIA driver on Linux that runs each CUDA build of MLX, newest build first."""
_PROBE = (
    "import json, mlx.core as mx; a = mx.ones((8, 8)); mx.eval(a @ a);"
    "print(json.dumps([mx.__version__, str(mx.default_device())]))"
)


@dataclass(frozen=True, slots=True)
class MlxHere:
    """MLX on this machine. If MLX cannot compute, `trouble` says why and `fix` is the remedy.
    Otherwise they are empty and None."""

    version: str = ""
    device: str = ""
    trouble: str = ""
    fix: Fix | None = None

    @property
    def is_on_gpu(self) -> bool:
        """Return whether MLX computes on a GPU, Apple's or NVIDIA's."""
        return "gpu" in self.device


def mlx(_settings: Settings, _running: bool) -> Finding:
    """Check that MLX computes. If the machine has an NVIDIA GPU, also check that MLX uses that
    GPU."""
    here = mlx_here()
    if here.fix is not None:
        remedy = f"reinstall it with `shoal doctor --fix`, or with {here.fix.words}"
        return Finding("mlx", "error", here.trouble, remedy, here.fix)
    text = f"{here.version} on {here.device}"
    if not here.is_on_gpu and (gpus := asked("nvidia-smi", *NVIDIA)):
        return idle_gpu(here.version, text, gpus)
    return Finding("mlx", "ok", text)


def idle_gpu(version: str, text: str, gpus: str) -> Finding:
    """Return the finding about an NVIDIA GPU that MLX does not use. `gpus` is the output of
    nvidia-smi: one line of name and driver version for each GPU."""
    name, _, driver = gpus.splitlines()[0].rpartition(",")
    name, driver = name.strip(), driver.strip()
    text = f"{text}, although there is a {name}"
    major = int(driver.partition(".")[0]) if driver.partition(".")[0].isdecimal() else 0
    build = next((build for oldest, build in BUILDS if major >= oldest), "")
    if not build:
        oldest = BUILDS[-1][0]
        remedy = (
            f"update NVIDIA's driver: MLX needs {oldest} or newer, this is {driver or 'unknown'}"
        )
        return Finding("mlx", "warn", text, remedy)
    remove = _removal()
    fix = Fix(
        (remove, own_pip("install", f"{build}=={version}", "nvidia-ml-py")),
        proof=((sys.executable, "-P", "-c", _PROBE),),
        undo=(remove, own_pip("install", f"mlx-cpu=={version}")),
    )
    remedy = f"install the CUDA build of MLX with `shoal doctor --fix`, or with {fix.words}"
    return Finding("mlx", "warn", text, remedy, fix)


def blas(settings: Settings, _running: bool) -> Finding:
    """Check the BLAS library in use. Report its speed relative to one thread, for the current value
    of `runner.parity` and for the other value."""
    if sys.platform != "linux":
        return Finding("BLAS", "ok", "needed only on Linux")
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
        return MlxHere(trouble=trouble, fix=_reinstall())
    if done.returncode != 0:
        return MlxHere(trouble=processes.last_words(done), fix=_reinstall())
    version, device = json.loads(done.stdout.splitlines()[-1])
    return MlxHere(version, device)


def _reinstall() -> Fix:
    package = "mlx" if sys.platform == "darwin" else "mlx[cpu]"
    with contextlib.suppress(metadata.PackageNotFoundError):
        package += f"=={metadata.version('mlx')}"
    install = own_pip("install", "--force-reinstall", package)
    return Fix((install,) if sys.platform == "darwin" else (_removal(), install))


def _removal() -> tuple[str, ...]:
    """Return the command that removes all builds of MLX for Linux. The builds contain the same
    files. So before a build is installed, all builds are removed, including that build itself."""
    return own_pip("uninstall", "-y", "mlx-cpu", *(build for _, build in BUILDS))
