"""Talks to the compilers: compiles files that runners preload beside a library.

`ONE_ROW` sends one row to `cblas_sgemv`; `exponential()` is MLX's own `exp`, compiled for this
processor. `preloads` says where the files are.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from conf.blas.libraries import processor
from conf.blas.preloads import NoInterposer, placed, private_file, remove_unused

HERE = Path(__file__).parent
COMPILE_S = 20.0
INSTALL_HINT = "install a C compiler (gcc, clang), then run `shoal down` and `shoal up`"


@dataclass(frozen=True, slots=True)
class Interposer:
    """A small library that runners preload before the BLAS library: its source file, and the
    compilers for it. The name of the compiled file contains a hash of its inputs; `made_for` is one
    of them, such as MLX's version."""

    name: str
    source: Path
    language: str
    compilers: tuple[str, ...]
    options: tuple[str, ...]
    made_for: str = ""

    @property
    def file_name(self) -> str:
        """Return the name of the compiled file, unique to its source, options and processor."""
        inputs = f"{platform.machine()} {self.options} {self.made_for}"
        text = self.source.read_bytes() + inputs.encode()
        return f"{self.name}-{hashlib.sha256(text).hexdigest()[:16]}.so"


ONE_ROW = Interposer(
    "one-row", HERE / "one_row.c", "C", ("cc", "gcc", "clang"), ("-O2", "-shared", "-fPIC", "-ldl")
)
FUSED = frozenset({"avx2", "fma"})
"""Flags of the x86-64 processors for which MLX's `exp` is worth compiling again."""


def exponential() -> Interposer | None:
    """Return MLX's `exp`, to be compiled from MLX's headers; None if there are no headers, or if
    the processor gains nothing."""
    spec = importlib.util.find_spec("mlx")
    places = (spec.submodule_search_locations or ()) if spec else ()
    include = next((p for place in places if (p := Path(place) / "include").is_dir()), None)
    if include is None or platform.machine() != "x86_64" or not processor()[1] >= FUSED:
        return None
    # Without contraction each step is rounded on its own, as in MLX's own build.
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
    """Return the compiled file; None if it does not exist. Raises NoInterposer if another user
    could have written it."""
    return private_file(folder, wanted.file_name)


def make_interposer(folder: Path, wanted: Interposer) -> Path:
    """Return the compiled file; compile it into `folder` if it does not exist. Raises
    NoInterposer."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ready = interposer_in(folder, wanted)
    if ready is not None:
        return ready
    compiler = next(filter(None, map(shutil.which, wanted.compilers)), None)
    if compiler is None:
        raise NoInterposer(f"no {wanted.language} compiler is installed", INSTALL_HINT)
    remove_unused(folder, wanted.name)
    draft = folder / f"{wanted.name}-draft-{os.getpid()}.so"
    command = [compiler, "-o", str(draft), str(wanted.source), *wanted.options]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoInterposer(f"{compiler}: {error}", INSTALL_HINT) from error
    if done.returncode != 0:
        last_line = (done.stderr.strip().splitlines() or ["the compiler failed without a message"])[
            -1
        ]
        raise NoInterposer(f"{compiler}: {last_line[:200]}", INSTALL_HINT)
    return placed(draft, folder, wanted.file_name)
