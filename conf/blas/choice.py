"""What to preload, chosen from a table of measurements; what that gains, and its variables.

Pure. A measurement is of one library with one set of kernels on one number of threads. What was
not measured is never chosen, and what is not clearly faster never replaces the plainer choice: the
library's own kernels on one thread, which is what runs where nothing could be measured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

Parity = Literal["exact", "fast"]

WEIGHTS: Mapping[int, float] = {1: 0.4, 16: 0.2, 32: 0.2, 256: 0.2}
"""Rows of a product, and what its speed counts for: one answer, two batches, a prompt."""
CLEARLY = 1.05
"""A choice that is not faster by this factor is not worth being another one."""
SPIN = "26"
"""OpenBLAS's threads look for work for 2^26 ticks (some 25 ms) before they sleep. The next product
of a step comes sooner: with 2^20 ticks (under 1 ms) two threads were no faster than one."""
BLOCK_MS = "25"
"""The same of MKL's threads."""

KERNELS: Mapping[str, frozenset[str]] = {
    "Haswell": frozenset({"avx2", "fma"}),
    "SkylakeX": frozenset({"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"}),
    "Cooperlake": frozenset({"avx512f", "avx512bw", "avx512vl", "avx512_bf16"}),
    "SapphireRapids": frozenset({"avx512f", "avx512bw", "avx512vl", "avx512_bf16", "amx_bf16"}),
}
"""Sets of kernels that OpenBLAS may be told to use, and the flags of the processors that can."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library with `cblas_sgemm`; `kind` decides by which variables it is told what to do."""

    path: str
    kind: Literal["openblas", "mkl"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one library did with one set of kernels on so many threads.

    `kernels` is empty where the library chose them itself. Seconds of one product by its rows, and
    of one row through `cblas_sgemv`. `steady`: the products are those of one thread, bit by bit;
    `even`: one row is what it is among many.
    """

    library: Library
    kernels: str
    threads: int
    seconds: Mapping[int, float]
    sgemv_s: float
    steady: bool
    even: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """What runners are started with. `gains`: by rows, how many times as fast as the same library
    is by itself on one thread; empty where that was not measured. `fused_exp`: with MLX's `exp`
    compiled for this processor, too."""

    library: Library
    kernels: str = ""
    threads: int = 1
    one_row: Literal["sgemm", "sgemv"] = "sgemm"
    gains: tuple[tuple[int, float], ...] = ()
    fused_exp: bool = False


def told(choice: Choice) -> str:
    """Return a choice in words."""
    kernels = f"{choice.kernels} kernels, " if choice.kernels else ""
    threads = f"{choice.threads} thread{'s' * (choice.threads > 1)}"
    name = "MKL" if choice.library.kind == "mkl" else "OpenBLAS"
    one_row = ", one row by sgemv" if choice.one_row == "sgemv" else ""
    exp = ", fused exp" if choice.fused_exp else ""
    return f"{name} ({choice.library.path.rpartition('/')[2]}), {kernels}{threads}{one_row}{exp}"


def told_gains(choice: Choice) -> str:
    """Return what a choice gains with the fewest and the most rows that were measured."""
    (few, less), *_, (many, more) = choice.gains
    return f"{less:.1f} x one thread at {few} row{'s' * (few > 1)}, {more:.1f} x at {many}"


def kernels_for(flags: Collection[str]) -> list[str]:
    """Return the sets of kernels that a processor with these flags can run."""
    has = frozenset(flags)
    return [name for name, needs in KERNELS.items() if needs <= has]


def thread_counts(cores: int) -> list[int]:
    """Return the numbers of threads worth measuring: powers of two, and all cores."""
    return sorted({cores, *(1 << n for n in range(cores.bit_length()) if 1 << n <= cores)})


def choose(
    measured: Sequence[Measured],
    parity: Parity,
    threads: int | Literal["auto"] = "auto",
    *,
    can_interpose: bool = True,
) -> Choice | None:
    """Return the best choice; None where nothing was measured.

    With "exact" one row goes the way of many, through `cblas_sgemm`; several threads are taken only
    where they change no bit, another library than the first only where one row has the same bits
    among many, for some send it another way themselves. With "fast" one row goes through
    `cblas_sgemv` where that is faster and `can_interpose`. A number of `threads` is taken as it is.
    """
    if not measured:
        return None
    base = measured[0]
    rivals = [one for one in measured if _allowed(one, measured, parity, threads)]
    best, best_choice = 1.0, None
    for rival in sorted(rivals, key=lambda one: one.threads):
        for choice in _ways(rival, base, with_sgemv=parity == "fast" and can_interpose):
            speed = _speed(choice)
            if best_choice is None or speed > best * CLEARLY:
                best, best_choice = speed, choice
    if best_choice is None or threads == "auto":
        return best_choice
    return replace(best_choice, threads=threads)


def _allowed(
    one: Measured, measured: Sequence[Measured], parity: Parity, threads: int | Literal["auto"]
) -> bool:
    if parity == "exact" and one.library != measured[0].library and not one.even:
        return False
    if threads == "auto":
        return one.steady or one.threads == 1 or parity == "fast"
    return one.threads == max(
        (other.threads for other in measured if other.threads <= threads), default=1
    )


def _ways(one: Measured, base: Measured, *, with_sgemv: bool) -> list[Choice]:
    plain = {rows: base.seconds[rows] / one.seconds[rows] for rows in WEIGHTS}
    ways = [Choice(one.library, one.kernels, one.threads, "sgemm", tuple(plain.items()))]
    if with_sgemv:
        gains = tuple({**plain, 1: base.seconds[1] / one.sgemv_s}.items())
        ways.append(Choice(one.library, one.kernels, one.threads, "sgemv", gains))
    return ways


def _speed(choice: Choice) -> float:
    """Return how many times as fast a choice is altogether."""
    return prod(gain ** WEIGHTS[rows] for rows, gain in choice.gains)


def kernel_variables(library: Library, kernels: str, threads: int) -> dict[str, str]:
    """Return the variables by which a library is told its kernels and threads, at its start."""
    if library.kind == "mkl":
        return {
            "MKL_INTERFACE_LAYER": "LP64",
            "MKL_THREADING_LAYER": "SEQUENTIAL" if threads == 1 else "INTEL",
            "MKL_NUM_THREADS": str(threads),
            "MKL_DYNAMIC": "FALSE",
            "KMP_BLOCKTIME": BLOCK_MS,
        }
    spin = {} if threads == 1 else {"OPENBLAS_THREAD_TIMEOUT": SPIN}
    core = {"OPENBLAS_CORETYPE": kernels} if kernels else {}
    return {"OPENBLAS_NUM_THREADS": str(threads), **spin, **core}


def variables(choice: Choice, *interposers: str) -> dict[str, str]:
    """Return the variables that runners are started with; the interposers come before the
    library."""
    preload = ":".join((*interposers, choice.library.path))
    return {
        "LD_PRELOAD": preload,
        **kernel_variables(choice.library, choice.kernels, choice.threads),
    }
