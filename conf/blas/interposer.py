"""Talks to the compilers: makes the files that are preloaded into runners beside a library.

`ONE_ROW` sends one row to `cblas_sgemv`; `exponential()` is MLX's own `exp`, compiled for this
processor. What lies there is loaded as code into every runner. So it lies in a folder of this user
alone, has the hash of what it is made from in its name, and is taken only where no other user could
have written it. All of the user's homes share the folder, those of other versions of shoal too: a
file is removed only when no node was started with it for half a year.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import stat
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from conf.blas.libraries import processor

HERE = Path(__file__).parent
COMPILE_S = 20.0
UNUSED_S = 180 * 86400.0
INSTALL_HINT = "install a C compiler (gcc, clang), then run `shoal down` and `shoal up`"


class NoInterposer(Exception):
    """The file cannot be had; `args[0]` says why, `args[1]` what to do."""


@dataclass(frozen=True, slots=True)
class Interposer:
    """A source file and what compiles it. `made_for` is what else the result depends on."""

    name: str
    source: Path
    language: str
    compilers: tuple[str, ...]
    options: tuple[str, ...]
    made_for: str = ""

    @property
    def file_name(self) -> str:
        """Return the name of the compiled file, which no other source, options or processor has."""
        told = f"{platform.machine()} {self.options} {self.made_for}"
        text = self.source.read_bytes() + told.encode()
        return f"{self.name}-{hashlib.sha256(text).hexdigest()[:16]}.so"


ONE_ROW = Interposer(
    "one-row", HERE / "one_row.c", "C", ("cc", "gcc", "clang"), ("-O2", "-shared", "-fPIC", "-ldl")
)
FUSED = frozenset({"avx2", "fma"})
"""Flags of the x86-64 processors for which MLX's `exp` is worth compiling again."""


def exponential() -> Interposer | None:
    """Return MLX's `exp`, to be compiled from the headers that came with it; None where they are
    not there, or the processor gains nothing."""
    found = importlib.util.find_spec("mlx")
    places = (found.submodule_search_locations or ()) if found else ()
    include = next((p for place in places if (p := Path(place) / "include").is_dir()), None)
    if include is None or platform.machine() != "x86_64" or not processor()[1] >= FUSED:
        return None
    # Without contraction the steps are rounded one by one, as in MLX as it came.
    flags = ("-std=c++17", "-O3", "-mavx2", "-mfma", "-ffp-contract=off", "-shared", "-fPIC")
    return Interposer(
        "exp",
        HERE / "exp.cpp",
        "C++",
        ("c++", "g++", "clang++"),
        (*flags, f"-I{include}"),
        importlib.metadata.version("mlx"),
    )


def interposer_in(folder: Path, wanted: Interposer) -> Path | None:
    """Return the file where it lies ready. Raises NoInterposer where another user could have
    written it."""
    path = folder / wanted.file_name
    if not path.exists():
        return None
    for place, is_kind in ((folder, stat.S_ISDIR), (path, stat.S_ISREG)):
        found = place.lstat()
        if not is_kind(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise NoInterposer(f"{place} is not private to this user", f"remove {place}")
    return path


def make_interposer(folder: Path, wanted: Interposer) -> Path:
    """Return the file, compiled into `folder` where it does not lie there yet. Raises
    NoInterposer."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ready = interposer_in(folder, wanted)
    if ready is not None:
        return ready
    compiler = next(filter(None, map(shutil.which, wanted.compilers)), None)
    if compiler is None:
        raise NoInterposer(f"no {wanted.language} compiler is installed", INSTALL_HINT)
    _remove_unused(folder, wanted.name)
    draft = folder / f"{wanted.name}-draft-{os.getpid()}.so"
    command = [compiler, "-o", str(draft), str(wanted.source), *wanted.options]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoInterposer(f"{compiler}: {error}", INSTALL_HINT) from error
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it failed without a message"])[-1]
        raise NoInterposer(f"{compiler}: {said[:200]}", INSTALL_HINT)
    draft.chmod(0o600)
    os.replace(draft, folder / wanted.file_name)
    made = interposer_in(folder, wanted)
    if made is None:
        raise NoInterposer(f"{folder} does not keep what is written there", f"check {folder}")
    return made


def note_use(path: Path) -> None:
    """Note that a node is started with a file, which keeps it."""
    with contextlib.suppress(OSError):
        os.utime(path)


def _remove_unused(folder: Path, name: str) -> None:
    for old in folder.glob(f"{name}-*"):
        with contextlib.suppress(OSError):
            if old.stat().st_mtime < time.time() - UNUSED_S:
                old.unlink()
