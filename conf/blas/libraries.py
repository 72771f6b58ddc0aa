"""Talks to the disk: which libraries with `cblas_sgemm` there are, and what the processor can run.

OpenBLAS comes from the system, MKL from the package `mkl` of this environment (the extra `mkl`), or
there is the one that `runner.blas` names.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from bus.process.tools import asked
from bus.wire.errors import ConfigError
from conf.blas.choice import Library

SONAME = "libopenblas.so.0"
FOLDERS = (
    "/usr/lib/x86_64-linux-gnu/openblas-pthread", "/usr/lib/aarch64-linux-gnu/openblas-pthread",
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64", "/usr/lib", "/usr/local/lib",
)  # fmt: skip
INSTALL_HINT = "install libopenblas0-pthread (Debian, Ubuntu) or openblas (Fedora, Arch)"


def find_libraries(wanted: str) -> list[Library]:
    """Return what may be preloaded, what is taken unmeasured first; nothing where this is not
    Linux. `wanted` is `runner.blas`. Raises ConfigError when it names what is no file."""
    if not sys.platform.startswith("linux") or wanted == "off":
        return []
    if wanted != "auto":
        if not Path(wanted).is_file():
            raise ConfigError(f"runner.blas = {wanted!r}: no such file (`auto`, `off`, a library)")
        return [Library(wanted, "mkl" if "mkl" in Path(wanted).name else "openblas")]
    found = [Library(str(path), "openblas") for path in (find_openblas(),) if path is not None]
    return found + [Library(str(path), "mkl") for path in (_find_mkl(),) if path is not None]


def find_openblas() -> Path | None:
    """Return the system's OpenBLAS, or None where there is none."""
    paths = (Path(folder) / SONAME for folder in FOLDERS)
    return next((path for path in paths if path.exists()), None) or _from_loader()


def usable_cores() -> int:
    """Return how many cores this process may use: those it may run on, less where its control
    group is held to fewer."""
    if not sys.platform.startswith("linux"):
        return os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0))
    return max(1, min([cores, *map(int, _quotas())]))


def processor() -> tuple[str, frozenset[str]]:
    """Return the processor's model and its flags, as Linux names them."""
    seen: dict[str, str] = {}
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        seen.setdefault(name.strip(), value.strip())
    model = " ".join(seen.get(name, "") for name in ("model name", "cpu family", "model"))
    return model, frozenset(seen.get("flags", "").split())


def fingerprint(libraries: Sequence[Library], kernels: Sequence[str], cores: int) -> str:
    """Return what a measurement holds for: this processor, its cores, these files and kernels, and
    what the probe tries."""
    model, flags = processor()
    probe = Path(__file__).with_name("probe.py").read_text()
    files = [(one.path, os.path.realpath(one.path), *_identity(one.path)) for one in libraries]
    text = json.dumps([model, sorted(flags), cores, files, kernels, probe])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def _find_mkl() -> Path | None:
    try:
        files = importlib.metadata.files("mkl") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    paths = (Path(str(f.locate())).resolve() for f in files if f.name.startswith("libmkl_rt.so"))
    return next((path for path in paths if path.exists()), None)


def _from_loader() -> Path | None:
    ldconfig = shutil.which("ldconfig") or shutil.which("/sbin/ldconfig")
    if ldconfig is None:
        return None
    for line in asked(ldconfig, "-p").splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.split(" ")[0] == SONAME and Path(path).exists():
            return Path(path)
    return None


def _quotas() -> list[float]:
    """Return the quotas of this process's control group and of those above it, in cores."""
    quotas: list[float] = []
    root = Path("/sys/fs/cgroup")
    own = root / _read(Path("/proc/self/cgroup")).rpartition("::/")[2].strip()
    for folder in (own, *own.parents):
        if not folder.is_relative_to(root):
            break
        quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
    return quotas


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
