"""Talks to the disk: finds OpenBLAS, which makes runners on Linux fast.

MLX's CPU backend on Linux multiplies float32 matrices with the `cblas_sgemm` that the loader
finds first; its own is some 40 times slower on prompts than OpenBLAS. Runners are therefore
started with OpenBLAS preloaded. MLX computes in one thread, so OpenBLAS's are all that can use more
cores; they spin while they wait, so by default there is one (`runner.blas_threads`).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from bus.process.tools import asked

SONAME = "libopenblas.so.0"
FOLDERS = (
    "/usr/lib/x86_64-linux-gnu/openblas-pthread", "/usr/lib/aarch64-linux-gnu/openblas-pthread",
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64", "/usr/lib", "/usr/local/lib",
)  # fmt: skip
INSTALL_HINT = "install libopenblas0-pthread (Debian, Ubuntu) or openblas (Fedora, Arch)"


def find_openblas() -> Path | None:
    """Return the library to preload, or None where there is none or this is not Linux."""
    if not sys.platform.startswith("linux"):
        return None
    paths = (Path(folder) / SONAME for folder in FOLDERS)
    return next((path for path in paths if path.exists()), None) or _from_loader()


def preload(library: Path | None, threads: int = 1) -> dict[str, str]:
    """Return the variables that a runner is started with; none without a library."""
    if library is None:
        return {}
    return {"LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": str(threads)}


def _from_loader() -> Path | None:
    ldconfig = shutil.which("ldconfig") or shutil.which("/sbin/ldconfig")
    if ldconfig is None:
        return None
    for line in asked(ldconfig, "-p").splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.split(" ")[0] == SONAME and Path(path).exists():
            return Path(path)
    return None
