"""Talks to the disk: finds libraries with `cblas_sgemm`, and what the processor supports.

OpenBLAS comes from the system and from the package scipy-openblas32 of this environment, MKL from
the package `mkl` (an extra). `runner.blas` may name another library. The functions of
scipy-openblas32 have a prefix in their names; a small library made here gives them their usual
names (`forwarding`).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import mmap
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from bus.process.tools import asked
from bus.wire.errors import ConfigError
from conf.blas.choice import Library
from conf.blas.forwarding import MACHINES, NAMES, PREFIX, forwarding_library
from conf.blas.preloads import note_use, private_file, remove_unused, written_file

SONAME = "libopenblas.so.0"
FOLDERS = (
    "/usr/lib/x86_64-linux-gnu/openblas-pthread", "/usr/lib/aarch64-linux-gnu/openblas-pthread",
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64", "/usr/lib", "/usr/local/lib",
)  # fmt: skip
PACKAGE = "scipy_openblas32"
FORWARDER = "openblas"
"""The first part of the name of a library that forwards to another."""
INSTALL_HINT = (
    "`pip install scipy-openblas32`, or install libopenblas0-pthread (Debian, Ubuntu) or openblas "
    "(Fedora, Arch); then `shoal restart`"
)


def find_libraries(wanted: str, preloads: Path) -> list[Library]:
    """Return the libraries that may be preloaded; none on other systems than Linux. The first is
    used if nothing could be measured. `wanted` is `runner.blas`; `preloads` is the folder of files
    that are made for runners. Raises ConfigError if `wanted` names no file."""
    if not sys.platform.startswith("linux") or wanted == "off":
        return []
    if wanted != "auto":
        if not Path(wanted).is_file():
            raise ConfigError(
                f"runner.blas = {wanted!r}: no such file; use `auto`, `off` or a library's path"
            )
        return [Library(wanted, "mkl" if "mkl" in Path(wanted).name else "openblas")]
    libraries = [Library(str(path), "openblas") for path in (find_openblas(),) if path is not None]
    libraries += [_forwarded(path, preloads) for path in (find_package(),) if path is not None]
    return libraries + [Library(str(path), "mkl") for path in (_find_mkl(),) if path is not None]


def make_forwarders(libraries: Sequence[Library]) -> None:
    """Write the libraries that forward to another and do not exist yet. Raises NoInterposer."""
    for library in libraries:
        path = Path(library.path)
        if library.source and private_file(path.parent, path.name) is None:
            names = _names_in(Path(library.source))
            content = forwarding_library(library.source, names, platform.machine())
            remove_unused(path.parent, FORWARDER)
            written_file(path.parent, path.name, content)
        if library.source:
            note_use(path)


def find_openblas() -> Path | None:
    """Return the path of the system's OpenBLAS, or None."""
    paths = (Path(folder) / SONAME for folder in FOLDERS)
    return next((path for path in paths if path.exists()), None) or _from_loader()


def find_package() -> Path | None:
    """Return the library of the package scipy-openblas32; None if it is not installed, or made for
    another machine."""
    spec = importlib.util.find_spec(PACKAGE)
    places = (spec.submodule_search_locations or ()) if spec else ()
    paths = (Path(place) / "lib" / "libscipy_openblas.so" for place in places)
    path = next((path for path in paths if path.is_file()), None)
    return path if platform.machine() in MACHINES else None


def _forwarded(library: Path, preloads: Path) -> Library:
    """Return the library that forwards to `library`; it may not exist yet."""
    code = Path(__file__).with_name("forwarding.py").read_bytes()
    inputs = f"{library} {_identity(str(library))} {platform.machine()}"
    name = f"{FORWARDER}-{hashlib.sha256(code + inputs.encode()).hexdigest()[:16]}.so"
    return Library(str(preloads / name), "openblas", str(library))


def _names_in(library: Path) -> list[str]:
    """Return those functions of `NAMES` that a library has, with the prefix `PREFIX`. The
    interposer may call no other function of the library: a missing one would end each runner at its
    start."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return [name for name in NAMES if text.find(f"\0{PREFIX}{name}\0".encode()) >= 0]


def usable_cores() -> int:
    """Return how many cores this process may use, by its CPU affinity and the CPU quota of its
    control group."""
    if not sys.platform.startswith("linux"):
        return os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0))
    return max(1, min([cores, *map(int, _quotas())]))


def processor() -> tuple[str, frozenset[str]]:
    """Return the processor's model name and feature flags, as `/proc/cpuinfo` lists them."""
    seen: dict[str, str] = {}
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        seen.setdefault(name.strip(), value.strip())
    model = " ".join(seen.get(name, "") for name in ("model name", "cpu family", "model"))
    return model, frozenset(seen.get("flags", "").split())


def fingerprint(libraries: Sequence[Library], kernels: Sequence[str], cores: int) -> str:
    """Return a hash of all that a measurement depends on: the processor, its cores, the libraries'
    files, the kernels and the probe's source."""
    model, flags = processor()
    probe = Path(__file__).with_name("probe.py").read_text()
    files = [
        (library.path, os.path.realpath(library.file), *_identity(library.file))
        for library in libraries
    ]
    text = json.dumps([model, sorted(flags), cores, files, kernels, probe])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


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
    """Return the CPU quotas of this process's control group and its parents, in cores."""
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
