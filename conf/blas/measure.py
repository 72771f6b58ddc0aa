"""Talks to child processes and the disk: measures the BLAS libraries, and stores the results in a
table.

A table is valid for this processor, its cores and the libraries' files; all homes of the user share
it. Each start chooses from the table, as its settings say. Measured products that other programs
disturbed do not count (`probe`). If too few are left, the table has `trouble` and lacks those
figures. A node then measures again while it is idle (`__main__`), and so does a start ten minutes
later. If nothing could be measured, runners get the first library with its own kernels on one
thread.

A choice from a table without trouble is in force: a later measurement must be clearly better to
replace it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

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
from conf.blas.spans import span_of
from conf.blas.table import (
    Table,
    age_s,
    alone,
    better_table,
    in_force,
    put_in_force,
    remember,
    remembered,
)
from conf.settings import Settings

PROBE = Path(__file__).with_name("probe.py")
DEADLINE_S = 8.0
"""Longest time for the whole measurement, which takes about 1 s for each set of kernels."""
ROUNDS = 3
"""How often each library is measured, in turn. The speed of a machine drifts, by up to 40 % in
some virtual machines, so libraries that are measured once would be compared at different speeds."""
PROBE_S = 0.5
"""Longest time for which one probe times products."""
MANY_SHARE = 0.6
"""The share of the time that is left for measuring several threads; the rest is for one thread."""
STOLEN = 0.05
"""If a hypervisor took a larger share of the cores during a measurement, the table has trouble. The
times of single products do not show such a loss."""
BELIEVED_S = 600.0
"""A start measures again if the table has `trouble` and is older than this."""
WRONG_HINT = "set `runner.parity = exact`, which does not need that file"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The libraries that runners preload: the `choice` (None: nothing), and the environment
    `variables` for it. `trouble` says why the settings could not be followed or what the table
    lacks; `remedy` says what to do. `repeats`: the node measures again while it is idle."""

    choice: Choice | None = None
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    trouble: str = ""
    remedy: str = ""
    table: Table = field(default_factory=Table)
    repeats: bool = False


def prepared_blas(settings: Settings, *, believed_s: float = BELIEVED_S) -> Outcome:
    """Return the BLAS library for runners, with its variables. If that was not done yet, measures
    the libraries and compiles the files that runners preload. Measures again if the last
    measurement failed in part and is older than `believed_s`. Raises ConfigError if `runner.blas`
    is a path at which there is no file."""
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
    with alone(file):
        table = remembered(file)
        if table is None or (table.trouble and age_s(file) >= believed_s):
            table = better_table(table, measure(libraries, _kernels(settings), usable_cores()))
            remember(file, table)
    folder = settings.paths.preloads
    outcome = _outcome(settings, libraries, table, partial(_prepared, folder))
    if outcome.choice is not None and table.measured and not outcome.trouble:
        put_in_force(settings.paths.measured, _key(settings), outcome.choice)
    return outcome


def known_blas(settings: Settings) -> Outcome:
    """Return the BLAS library for runners, from what earlier starts measured and compiled. Measures
    and compiles nothing."""
    libraries = find_libraries(settings.runner.blas, settings.paths.preloads)
    if not libraries:
        return Outcome()
    table = remembered(_table_file(settings, libraries)) or Table(trouble="not measured yet")
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
    again = (
        f"to measure again now, remove {_table_file(settings, libraries)} and run `shoal restart`"
    )
    if not table.is_right:
        return Outcome(None, {}, table.trouble, again, table)
    choice = _chosen(settings, libraries, table)
    exp = _exponential(choice, interposer)
    before = [str(exp)] if exp is not None else []
    if choice.one_row == "sgemv":
        try:
            path = interposer(ONE_ROW, choice)
            if path is None:
                raise NoInterposer("the file to preload is not compiled", "`shoal up` compiles it")
            before.append(str(path))
        except NoInterposer as problem:
            plain = _chosen(settings, libraries, table, can_interpose=False)
            plain = replace(plain, fused_exp=exp is not None)
            trouble = f"a single row uses the slower cblas_sgemm: {problem.args[0]}"
            outcome = Outcome(plain, variables(plain, *before), trouble, problem.args[1], table)
            return replace(outcome, repeats=bool(table.trouble))
    choice = replace(choice, fused_exp=exp is not None)
    preloaded, remedy = variables(choice, *before), ""
    if table.trouble:
        remedy = f"an idle node measures again by itself; {again}"
    return Outcome(choice, preloaded, table.trouble, remedy, table, repeats=bool(table.trouble))


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
    end_at, counts, stolen = time.monotonic() + deadline_s, thread_counts(cores), StolenTime(cores)
    probes = ROUNDS * [
        (library, kernels) for library in libraries for kernels in _sets(library, kernel_sets)
    ]
    samples: dict[tuple[Library, str], dict[str, Any]] = {}
    own: dict[Library, str] = {}
    waited: list[float] = []
    late, missed = False, 0
    for number, (library, kernels) in enumerate(probes):
        same = own.get(library, "")
        if kernels and kernels == same:
            continue
        most_s = min(PROBE_S, max(0.0, end_at - time.monotonic()) / (len(probes) - number))
        report = _probe(library, kernels, counts, (most_s, same), end_at)
        late = time.monotonic() > end_at
        if late:
            break
        if report is not None and report["threads"]:
            own.setdefault(library, str(report["kernels"]))
            waited.append(float(report["waited"]))
            missed = max(missed, int(report.get("missed", 0)))
            _add(samples.setdefault((library, kernels), {}), report["threads"])
    measured = [row for probe, threads in samples.items() for row in _rows(*probe, threads)]
    figures = missed + sum(len(threads) for threads in samples.values())
    share = sum(waited) / len(waited) if waited else 0.0
    trouble = ""
    if late:
        trouble = f"measuring took longer than {deadline_s:g} s"
    elif len(measured) < figures:
        trouble = f"other programs disturbed {figures - len(measured)} of {figures} measurements"
    elif not figures:
        trouble = "no BLAS library multiplies matrices correctly on this machine"
    elif (lost := stolen.share()) > STOLEN:
        trouble = f"the hypervisor took {lost:.0%} of the cores during the measurement"
    return Table(tuple(measured), trouble, time.time(), share, is_right=late or bool(figures))


def _sets(library: Library, kernel_sets: Sequence[str]) -> tuple[str, ...]:
    """Return the sets of kernels to measure; "" are the library's own."""
    return ("", *(kernel_sets if library.kind == "openblas" else ()))


def _probe(
    library: Library, kernels: str, counts: Sequence[int], limits: tuple[float, str], end_at: float
) -> dict[str, Any] | None:
    """Return the report of a probe process; None if it fails. If it fails with several threads, it
    runs again with one thread. `limits`: the seconds for timing, and the kernels that need no
    measurement. The report's `missed` counts the numbers of threads that the time did not suffice
    for."""
    many = kernel_variables(library, kernels, counts[-1])
    many_end_at = time.monotonic() + MANY_SHARE * max(0.0, end_at - time.monotonic())
    report = _run_probe(library.path, many, counts, limits, many_end_at)
    if report is None and counts[-1] > 1:
        missed = len(counts) - 1 if time.monotonic() >= many_end_at else 0
        alone = kernel_variables(library, kernels, 1)
        report = _run_probe(library.path, alone, counts[:1], limits, end_at)
        return None if report is None else {**report, "missed": missed}
    return report


def _run_probe(
    path: str,
    blas: Mapping[str, str],
    counts: Sequence[int],
    limits: tuple[float, str],
    end_at: float,
) -> dict[str, Any] | None:
    numbers = ",".join(map(str, counts))
    command = [sys.executable, "-I", "-S", str(PROBE), path, numbers, *map(str, limits)]
    environment = {**os.environ, "LD_PRELOAD": "", **blas}
    left_s = max(0.0, end_at - time.monotonic())
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=left_s, check=True
        )
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _add(into: dict[str, Any], report: Mapping[str, Any]) -> None:
    """Add the figures of a further round to those of the earlier rounds."""
    for count, row in report.items():
        sums = into.setdefault(count, {"steady": True, "even": True, "seconds": {}})
        for name in ("steady", "even"):
            sums[name] = sums[name] and row[name]
        for rows, seconds in row["seconds"].items():
            sums["seconds"].setdefault(rows, []).append(seconds)


def _rows(library: Library, kernels: str, threads: Mapping[str, Any]) -> list[Measured]:
    """Return the figures of one library with one set of kernels, from the reports of its probes. A
    number of threads with too few undisturbed products is left out."""
    measured: list[Measured] = []
    for count, row in threads.items():
        spans = {int(rows): span_of(samples) for rows, samples in row["seconds"].items()}
        seconds = {rows: span for rows, span in spans.items() if span is not None}
        if len(seconds) == len(spans):
            sgemv, bits = seconds.pop(0), (bool(row["steady"]), bool(row["even"]))
            measured.append(Measured(library, kernels, int(count), seconds, sgemv, *bits))
    return measured


class StolenTime:
    """The time that a hypervisor gave to other machines since this object was made, from
    `/proc/stat`."""

    def __init__(self, cores: int) -> None:
        self._cores, self._began_at, self._before_s = cores, time.monotonic(), self._read_s()

    def share(self) -> float:
        """Return the share of the cores that was stolen; 0 if the system does not report it."""
        passed_s = max(0.01, time.monotonic() - self._began_at)
        return (self._read_s() - self._before_s) / (passed_s * self._cores)

    def _read_s(self) -> float:
        with suppress(OSError, IndexError, ValueError):
            first = Path("/proc/stat").read_text().partition("\n")[0].split()
            return int(first[8]) / os.sysconf("SC_CLK_TCK")
        return 0.0


def _chosen(
    settings: Settings, libraries: Sequence[Library], table: Table, *, can_interpose: bool = True
) -> Choice:
    runner = settings.runner
    threads = 1 if runner.blas_threads == "auto" else runner.blas_threads
    choice = choose(
        table.measured,
        runner.parity,
        runner.blas_threads,
        can_interpose=can_interpose,
        in_force=in_force(settings.paths.measured).get(_key(settings)),
    )
    return choice or Choice(libraries[0], threads=threads)


def _key(settings: Settings) -> str:
    """Return the settings on which a choice depends, as the key under which it is stored."""
    runner = settings.runner
    return f"{runner.blas} {runner.parity} {runner.blas_threads}"


def _prepared(folder: Path, wanted: Interposer, choice: Choice) -> Path:
    """Return the path of a compiled file to preload. If it does not exist, compile it and check the
    products that it computes. Other nodes that start now wait for it. Raises NoInterposer."""
    with alone(folder / wanted.file_name):
        ready = interposer_in(folder, wanted)
        if ready is None:
            ready = make_interposer(folder, wanted)
            environment = variables(choice, str(ready))
            if _run_probe("", environment, (), (0.0, ""), time.monotonic() + DEADLINE_S) is None:
                ready.unlink()
                raise NoInterposer(
                    "the compiled file to preload computes wrong products", WRONG_HINT
                )
    note_use(ready)
    return ready


def _kernels(settings: Settings) -> list[str]:
    """Return the sets of kernels to try beside a library's own; none for a library named in
    `runner.blas`."""
    return kernels_for(processor()[1]) if settings.runner.blas == "auto" else []


def _table_file(settings: Settings, libraries: Sequence[Library]) -> Path:
    name = fingerprint(libraries, _kernels(settings), usable_cores())
    return settings.paths.measured / f"blas-{name}.json"
