"""Talks to child processes and the disk: measures the libraries once, and stores the table.

A table is valid for this processor, its cores and the libraries' files; all homes of the user share
it. Each start chooses from it by the settings. If the measurement failed, runners get the first
library with its own kernels on one thread. If other work on the machine disturbed the measurement,
only the figures for a single thread are used. In both cases the outcome says what went wrong, and a
node that starts an hour later measures again.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from conf.blas.choice import (
    Choice,
    Library,
    Measured,
    choose,
    kernel_variables,
    kernels_for,
    thread_counts,
    variables,
)
from conf.blas.interposer import (
    ONE_ROW,
    Interposer,
    exponential,
    interposer_in,
    make_interposer,
)
from conf.blas.libraries import (
    find_libraries,
    fingerprint,
    make_forwarders,
    processor,
    usable_cores,
)
from conf.blas.preloads import NoInterposer, note_use
from conf.settings import Settings

PROBE = Path(__file__).with_name("probe.py")
DEADLINE_S = 8.0
"""Longest time for the whole measurement, which takes about 0.3 s for each set of kernels."""
CALM = 0.8
"""A measurement counts as undisturbed if its process had a core for this share of the time."""
QUICK_S = 0.8
"""A disturbed measurement is repeated if it took at most this long."""
BELIEVED_S = 3600.0
"""A table with `trouble` (its measurement failed or was disturbed) is measured again after this
time."""
WRONG_HINT = "`runner.parity = exact` does not use the interposer"
BUSY = "the machine was too busy to measure more than one thread"


@dataclass(frozen=True, slots=True)
class Table:
    """The measurements; `trouble` says why some are missing."""

    measured: tuple[Measured, ...] = ()
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The choice for runners (None if nothing is preloaded), and their variables. `trouble` says
    why the settings could not be followed, `remedy` what to do."""

    choice: Choice | None = None
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    trouble: str = ""
    remedy: str = ""
    table: Table = field(default_factory=Table)


def prepared_blas(settings: Settings) -> Outcome:
    """Return the choice for runners. Measures the libraries and compiles the interposers if that
    was not done yet. Raises ConfigError if `runner.blas` names no file."""
    libraries = find_libraries(settings.runner.blas, settings.paths.preloads)
    try:
        make_forwarders(libraries)
    except NoInterposer as problem:
        libraries = [library for library in libraries if not library.source]
        if not libraries:
            return Outcome(trouble=problem.args[0], remedy=problem.args[1])
    if not libraries:
        return Outcome()
    file = _table_file(settings, libraries)
    with _alone(file):
        table = _remembered(file)
        if table is None:
            table = measure(libraries, _kernels(settings), usable_cores())
            _remember(file, table)
    folder = settings.paths.preloads
    return _outcome(settings, libraries, table, partial(_prepared, folder))


def known_blas(settings: Settings) -> Outcome:
    """Return the same as `prepared_blas`, but measure and compile nothing."""
    libraries = find_libraries(settings.runner.blas, settings.paths.preloads)
    if not libraries:
        return Outcome()
    table = _remembered(_table_file(settings, libraries)) or Table(trouble="not measured yet")
    folder = settings.paths.preloads
    return _outcome(
        settings, libraries, table, lambda wanted, _choice: interposer_in(folder, wanted)
    )


def _outcome(
    settings: Settings,
    libraries: list[Library],
    table: Table,
    interposer: Callable[[Interposer, Choice], Path | None],
) -> Outcome:
    choice, trouble, remedy = _chosen(settings, libraries, table), table.trouble, ""
    exp = _exponential(choice, interposer)
    before = [str(exp)] if exp is not None else []
    choice = replace(choice, fused_exp=exp is not None)
    if trouble:
        remedy = f"to measure again, remove {_table_file(settings, libraries)} and run `shoal up`"
    if choice.one_row == "sgemm":
        return Outcome(choice, variables(choice, *before), trouble, remedy, table)
    try:
        path = interposer(ONE_ROW, choice)
        if path is None:
            raise NoInterposer("the interposer is not compiled", "`shoal up` compiles it")
        return Outcome(choice, variables(choice, *before, str(path)), trouble, remedy, table)
    except NoInterposer as problem:
        plain = _chosen(settings, libraries, table, can_interpose=False)
        choice = replace(plain, fused_exp=exp is not None)
        trouble = f"one row uses cblas_sgemm: {problem.args[0]}"
        return Outcome(choice, variables(choice, *before), trouble, problem.args[1], table)


def _exponential(
    choice: Choice, interposer: Callable[[Interposer, Choice], Path | None]
) -> Path | None:
    """Return MLX's `exp` for this processor; None if it is not available. Without a compiler MLX
    cannot compile kernels either, so nothing would call it."""
    wanted = exponential()
    if wanted is None:
        return None
    try:
        return interposer(wanted, choice)
    except NoInterposer:
        return None


def measure(
    libraries: Sequence[Library],
    kernel_sets: Sequence[str],
    cores: int,
    deadline_s: float = DEADLINE_S,
) -> Table:
    """Return the measurements of the libraries with their own kernels, and of OpenBLAS with
    further sets of kernels, too. Libraries that crash or compute wrong products are left out."""
    end_at = time.monotonic() + deadline_s
    counts = thread_counts(cores)
    measured: list[Measured] = []
    calm = True
    for library in libraries:
        own = ""
        for kernels in ("", *(kernel_sets if library.kind == "openblas" else ())):
            if kernels and kernels == own:
                continue
            report = _probe_calmly(library, kernels, counts, own, end_at)
            if time.monotonic() > end_at:
                return Table(trouble=f"measuring took longer than {deadline_s:g} s")
            if report is None:
                continue
            calm = calm and report["share"] >= CALM
            own = own or str(report["kernels"])
            measured += [_row(library, kernels, count, row) for count, row in _rows(report)]
    if not measured:
        return Table(trouble="no library computes right products on this machine")
    if not calm:
        return Table(tuple(row for row in measured if row.threads == 1), BUSY)
    return Table(tuple(measured))


def _probe_calmly(
    library: Library, kernels: str, counts: Sequence[int], own: str, end_at: float
) -> dict[str, Any] | None:
    """Return the report of a probe process; run it a second time if the first was disturbed. `own`
    are the library's own kernels, if known."""
    began = time.monotonic()
    report = _probe(library, kernels, counts, own, end_at)
    if report is None or report["share"] >= CALM or time.monotonic() - began > QUICK_S:
        return report
    return _probe(library, kernels, counts, own, end_at)


def _probe(
    library: Library, kernels: str, counts: Sequence[int], own: str, end_at: float
) -> dict[str, Any] | None:
    """Return the report of a probe process; only for one thread if more threads fail."""
    many = kernel_variables(library, kernels, counts[-1])
    report = _run_probe(library.path, many, counts, own, end_at)
    if report is None and counts[-1] > 1:
        alone = kernel_variables(library, kernels, 1)
        report = _run_probe(library.path, alone, counts[:1], own, end_at)
    return report


def _run_probe(
    path: str, blas: Mapping[str, str], counts: Sequence[int], own: str, end_at: float
) -> dict[str, Any] | None:
    command = [sys.executable, "-I", "-S", str(PROBE), path, ",".join(map(str, counts)), own]
    environment = {**os.environ, "LD_PRELOAD": "", **blas}
    left_s = max(0.0, end_at - time.monotonic())
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=left_s, check=True
        )
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _rows(report: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    return [(int(count), row) for count, row in report["threads"].items()]


def _row(library: Library, kernels: str, threads: int, row: Mapping[str, Any]) -> Measured:
    seconds = {int(rows): float(taken) for rows, taken in row["seconds"].items()}
    bits = bool(row["steady"]), bool(row["even"])
    return Measured(library, kernels, threads, seconds, float(row["sgemv_s"]), *bits)


def _chosen(
    settings: Settings, libraries: Sequence[Library], table: Table, *, can_interpose: bool = True
) -> Choice:
    runner = settings.runner
    threads = 1 if runner.blas_threads == "auto" else runner.blas_threads
    return choose(
        table.measured, runner.parity, runner.blas_threads, can_interpose=can_interpose
    ) or Choice(libraries[0], threads=threads)


def _prepared(folder: Path, wanted: Interposer, choice: Choice) -> Path:
    """Return an interposer; compile and check it if it does not exist. Other nodes that start now
    wait for it. Raises NoInterposer."""
    with _alone(folder / wanted.file_name):
        ready = interposer_in(folder, wanted)
        if ready is None:
            ready = make_interposer(folder, wanted)
            environment = variables(choice, str(ready))
            if _run_probe("", environment, (), "", time.monotonic() + DEADLINE_S) is None:
                ready.unlink()
                raise NoInterposer("products through the interposer are wrong", WRONG_HINT)
    note_use(ready)
    return ready


def _kernels(settings: Settings) -> list[str]:
    """Return the sets of kernels to try beside a library's own; none for a library named in
    `runner.blas`."""
    return kernels_for(processor()[1]) if settings.runner.blas == "auto" else []


def _table_file(settings: Settings, libraries: Sequence[Library]) -> Path:
    name = fingerprint(libraries, _kernels(settings), usable_cores())
    return settings.paths.measured / f"blas-{name}.json"


@contextmanager
def _alone(file: Path) -> Generator[None]:
    """Hold a file's lock, so that other starting nodes do not make the same file."""
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remembered(file: Path) -> Table | None:
    try:
        table = _adapter().validate_json(file.read_bytes())
        age_s = time.time() - file.stat().st_mtime
    except (OSError, ValueError):
        return None
    return table if not table.trouble or 0 <= age_s < BELIEVED_S else None


def _remember(file: Path, table: Table) -> None:
    draft = file.with_suffix(".draft")
    with suppress(OSError):
        draft.write_bytes(_adapter().dump_json(table))
        os.replace(draft, file)


@cache
def _adapter() -> TypeAdapter[Table]:
    return TypeAdapter(Table)
