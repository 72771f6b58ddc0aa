"""Chooses the library to preload from a table of measurements, and returns its variables.

Pure. A measurement covers one library with one set of kernels and one number of threads. The choice
is always a measured one. It differs from the default only if it is clearly faster. The default, the
library's own kernels on one thread, also runs if nothing could be measured.

A measured time is a range (`spans`). A rival is compared by the lower bound of its speed, so that a
lucky run does not win. More threads, or `cblas_sgemv`, must exceed the median of the best so far.
Another library or other kernels must exceed its upper bound, because two processes with the same
library can differ in speed by a tenth. So of about equally fast libraries the first is chosen. The
choice in force stays while its range overlaps that of the best rival. So two measurements of a
quiet machine do not change the kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from conf.blas.spans import TimeRange

Parity = Literal["exact", "fast"]

WEIGHTS: Mapping[int, float] = {1: 0.4, 16: 0.2, 32: 0.2, 256: 0.2}
"""Weight of the speed at each number of rows: one answer, two sizes of batches, a prompt."""
CLEARLY = 1.05
"""A candidate replaces the best one so far only if it is faster by this factor."""
SPIN = "26"
"""OpenBLAS's threads wait actively for 2^26 ticks (about 25 ms) before they sleep, because the next
product of a step comes sooner than that. With 2^20 ticks (under 1 ms) two threads were no faster
than one."""
BLOCK_MS = "25"
"""For this many milliseconds MKL's threads wait actively before they sleep, for the same
reason as OpenBLAS's (`SPIN`)."""

KERNELS: Mapping[str, frozenset[str]] = {
    "Haswell": frozenset({"avx2", "fma"}),
    "SkylakeX": frozenset({"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"}),
    "Cooperlake": frozenset({"avx512f", "avx512bw", "avx512vl", "avx512_bf16"}),
    "SapphireRapids": frozenset({"avx512f", "avx512bw", "avx512vl", "avx512_bf16", "amx_bf16"}),
}
"""OpenBLAS's sets of kernels, each with the processor flags that it needs."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library with `cblas_sgemm`; `kind` decides which variables configure it. `source` is the
    library that this one forwards to; empty if it forwards to none."""

    path: str
    kind: Literal["openblas", "mkl"]
    source: str = ""

    @property
    def file(self) -> str:
        """Return the path of the library that computes the products: `source`, if this one only
        forwards to it."""
        return self.source or self.path


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurement of one library with one set of kernels and a number of threads.

    `kernels` is "" if the library chose its own. `seconds` maps a number of rows to the time of one
    product; `sgemv` is the time of one row through `cblas_sgemv`. `steady`: the products equal
    those of one thread, bit for bit. `even`: a row has the same bits alone and among other rows.
    """

    library: Library
    kernels: str
    threads: int
    seconds: Mapping[int, TimeRange]
    sgemv: TimeRange
    steady: bool
    even: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """The library of runners and its configuration.

    `gains` is (rows, speed relative to the first library with its own kernels on one thread); empty
    if not measured. `fused_exp`: also preload MLX's `exp`, compiled for this processor.
    """

    library: Library
    kernels: str = ""
    threads: int = 1
    one_row: Literal["sgemm", "sgemv"] = "sgemm"
    gains: tuple[tuple[int, float], ...] = ()
    fused_exp: bool = False


def told(choice: Choice) -> str:
    """Return a text that describes a choice, for the log."""
    kernels = f"{choice.kernels} kernels, " if choice.kernels else ""
    threads = f"{choice.threads} thread{'s' * (choice.threads > 1)}"
    name = "MKL" if choice.library.kind == "mkl" else "OpenBLAS"
    one_row = ", one row by sgemv" if choice.one_row == "sgemv" else ""
    exp = ", fused exp" if choice.fused_exp else ""
    return f"{name} ({choice.library.file.rpartition('/')[2]}), {kernels}{threads}{one_row}{exp}"


def told_gains(choice: Choice) -> str:
    """Return a text with the gains in speed of a choice, for the fewest and for the most measured
    rows."""
    (few, less), *_, (many, more) = choice.gains
    return f"{less:.1f} x one thread at {few} row{'s' * (few > 1)}, {more:.1f} x at {many}"


def kernels_for(flags: Collection[str]) -> list[str]:
    """Return the sets of kernels that processors with these flags can run."""
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
    in_force: Choice | None = None,
) -> Choice | None:
    """Return the best choice; None if nothing was measured.

    With "exact" one row uses `cblas_sgemm`, as many rows do. Several threads are chosen only if
    they change no bit. If a row has the same bits alone and among others with the first library, no
    library is chosen that lacks this. With "fast" one row uses `cblas_sgemv` if that is faster and
    `can_interpose`. A given number of `threads` is used unchanged. `in_force` is an earlier choice
    with the same arguments, from another measurement.
    """
    if not measured:
        return None
    base = measured[0]
    rivals = [candidate for candidate in measured if _allowed(candidate, measured, parity, threads)]
    best: _Way | None = None
    held: _Way | None = None
    for rival in sorted(
        rivals, key=lambda candidate: (_is_other(candidate, base), candidate.threads)
    ):
        for way in _ways(rival, base, with_sgemv=parity == "fast" and can_interpose):
            if best is None or _beats(way, best):
                best = way
            if in_force is not None and _same(way.choice, in_force, threads):
                held = way
    if best is None:
        return None
    choice = best.choice if held is None or best.least > held.most else held.choice
    return choice if threads == "auto" else replace(choice, threads=threads)


@dataclass(frozen=True, slots=True)
class _Way:
    """A candidate. Its weighted speed is relative to the first library on one thread: `least` and
    `most` bound it, `middle` is computed from the medians."""

    choice: Choice
    least: float
    middle: float
    most: float


def _is_other(choice: Measured | Choice, other: Measured | Choice) -> bool:
    """Return whether two choices differ in the library or its kernels."""
    return (choice.library, choice.kernels) != (other.library, other.kernels)


def _beats(rival: _Way, best: _Way) -> bool:
    other = _is_other(rival.choice, best.choice)
    return rival.least > CLEARLY * (best.most if other else best.middle)


def _same(choice: Choice, earlier: Choice, threads: int | Literal["auto"]) -> bool:
    same_threads = threads != "auto" or choice.threads == earlier.threads
    ways = [(c.library, c.kernels, c.one_row) for c in (choice, earlier)]
    return same_threads and ways[0] == ways[1]


def _allowed(
    candidate: Measured,
    measured: Sequence[Measured],
    parity: Parity,
    threads: int | Literal["auto"],
) -> bool:
    base = measured[0]
    if parity == "exact" and candidate.library != base.library and base.even > candidate.even:
        return False
    if threads == "auto":
        return candidate.steady or candidate.threads == 1 or parity == "fast"
    return candidate.threads == max(
        (other.threads for other in measured if other.threads <= threads), default=1
    )


def _ways(row: Measured, base: Measured, *, with_sgemv: bool) -> list[_Way]:
    ways = [_way(row, base, "sgemm", row.seconds)]
    if with_sgemv:
        ways.append(_way(row, base, "sgemv", {**row.seconds, 1: row.sgemv}))
    return ways


def _way(
    row: Measured,
    base: Measured,
    one_row: Literal["sgemm", "sgemv"],
    spans: Mapping[int, TimeRange],
) -> _Way:
    plain_s = {rows: base.seconds[rows].median_s for rows in WEIGHTS}
    gains = tuple((rows, plain_s[rows] / spans[rows].median_s) for rows in WEIGHTS)
    return _Way(
        Choice(row.library, row.kernels, row.threads, one_row, gains),
        prod((plain_s[rows] / spans[rows].high_s) ** WEIGHTS[rows] for rows in WEIGHTS),
        prod(gain ** WEIGHTS[rows] for rows, gain in gains),
        prod((plain_s[rows] / spans[rows].low_s) ** WEIGHTS[rows] for rows in WEIGHTS),
    )


def kernel_variables(library: Library, kernels: str, threads: int) -> dict[str, str]:
    """Return the environment variables that set a library's kernels and threads."""
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
    """Return the environment variables of a runner that preloads the chosen library. `interposers`
    are the paths of the files to preload before that library (`interposer`)."""
    preload = ":".join((*interposers, choice.library.path))
    return {
        "LD_PRELOAD": preload,
        **kernel_variables(choice.library, choice.kernels, choice.threads),
    }
