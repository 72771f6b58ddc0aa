"""Talks to the terminal and the system: `shoal selftest` checks shoal on this machine.

It runs in a temporary home, and needs neither a network nor a running node. Exits with 1 if a check
failed. After ten minutes a timer ends the current check, and the remaining checks fail.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import httpx2
import psutil
import typer

from bus.wire.errors import ShoalError
from gateway.cli.command import Invocation
from gateway.cli.output.errors import FAILED, USAGE, CliError
from gateway.cli.output.own_file import write_own
from gateway.cli.output.terminal import Output
from gateway.cli.selftest.machine_lines import (
    blas_lines,
    sensors_of,
    service_lines,
    sleep_lines,
    version_lines,
)
from gateway.cli.selftest.memory_check import memory_lines
from gateway.cli.selftest.node_checks import group_lines, jaccl_line, node_lines
from gateway.cli.selftest.report import document, is_passed
from gateway.cli.selftest.site import SelftestSite, without_variables
from gateway.cli.selftest.verdicts import (
    SelftestLine,
    greedy_lines,
    kv_lines,
    sampling_lines,
)

WHOLE_S = 540.0
"""Time for the checks. Stopping the nodes takes up to another minute."""
MEASURE_S = 240.0
REPORT = "run the check again, and report the message if it appears again"


class OutOfTime(Exception):
    """The checks took too long."""


@dataclass
class Checks:
    """The checks, in their order. Each yields its lines. `only` are names; empty: all."""

    site: SelftestSite
    only: tuple[str, ...] = ()
    lines: list[SelftestLine] = field(default_factory=list[SelftestLine])

    @functools.cached_property
    def measured(self) -> dict[str, Any]:
        """Return MLX's build and device."""
        return self.site.measure("versions", timeout_s=MEASURE_S)

    def chosen(self) -> dict[str, Callable[[], Iterator[SelftestLine]]]:
        """Return the chosen checks by name."""
        site = self.site
        every: dict[str, Callable[[], Iterator[SelftestLine]]] = {
            "versions": lambda: version_lines(site, self.measured),
            "blas": lambda: blas_lines(site),
            "service": lambda: service_lines(site),
            "parity": lambda: greedy_lines(site.measure("greedy", timeout_s=MEASURE_S)),
            "sampling": lambda: sampling_lines(site.measure("draws", timeout_s=MEASURE_S)),
            "kv": lambda: kv_lines(site.measure("reuse", timeout_s=MEASURE_S)),
            "group": self._group,
            "memory": lambda: memory_lines(site),
            "sensors": lambda: sensors_of(site, self.measured),
            "sleep": lambda: sleep_lines(site),
            "node": lambda: node_lines(site),
        }
        return {name: run for name, run in every.items() if not self.only or name in self.only}

    def run(self, name: str, act: Callable[[], Iterator[SelftestLine]]) -> Iterator[SelftestLine]:
        """Run one check; an error becomes a failed line."""
        try:
            for line in act():
                self.lines.append(line)
                yield line
        except CliError as error:
            yield self._failed(name, error.message, error.remedy)
        except (ShoalError, OSError, ValueError, KeyError, httpx2.HTTPError) as error:
            yield self._failed(name, f"{type(error).__name__}: {error}", "")
        except subprocess.SubprocessError as error:
            yield self._failed(name, str(error), "")

    def _failed(self, name: str, why: str, remedy: str) -> SelftestLine:
        text = " ".join(why.split())[:600]
        line = SelftestLine(name, "run", "failed", text, {}, remedy or REPORT)
        self.lines.append(line)
        return line

    def _group(self) -> Iterator[SelftestLine]:
        yield jaccl_line(self.measured, sys.platform)
        yield from group_lines(self.site)


NAMES = (
    "versions", "blas", "service", "parity", "sampling", "kv", "group", "memory", "sensors",
    "sleep", "node",
)  # fmt: skip


def selftest(
    invocation: Invocation,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="NAME", help=f"Only this check; may be repeated: {', '.join(NAMES)}."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="Write the result to FILE as JSON, without personal data.",
        ),
    ] = None,
) -> None:
    """Check shoal on this machine: computing, memory, sensors, and nodes that it starts in a
    temporary home. Takes up to ten minutes. Exits with 1 if a check failed."""
    wanted = _names(only or [])
    output, began = invocation.output, time.monotonic()
    with without_variables(), _cleaned(output) as site:
        checks = Checks(site, wanted)
        _run_all(checks, output)
        result = document(checks.lines, time.monotonic() - began, _secrets(site))
    if save is not None:
        write_own(save, (json.dumps(result, indent=2) + "\n").encode(), replace=True)
    output.document(result)
    failed = sum(line.outcome == "failed" for line in checks.lines)
    passed = sum(line.outcome == "passed" for line in checks.lines)
    rest = len(checks.lines) - failed - passed
    output.say(
        f"{passed} passed, {failed} failed, {rest} not applicable in {result['seconds']:.0f} s"
    )
    if not is_passed(checks.lines):
        raise typer.Exit(FAILED)


def _run_all(checks: Checks, output: Output) -> None:
    """Run the checks and show each line when it is known."""
    with output.waiting() as show:
        left = list(checks.chosen().items())
        try:
            with _timer(WHOLE_S):
                while left:
                    name, act = left[0]
                    show(f"{name}: running ({len(left)} checks left)")
                    for line in checks.run(name, act):
                        _show(line, output)
                    left.pop(0)
        except OutOfTime:
            text = f"no time left after {WHOLE_S:g} s"
            advice = "close other programs, or run fewer checks with `--only`"
            for name, _ in left:
                line = SelftestLine(name, "run", "failed", text, {}, advice)
                checks.lines.append(line)
                _show(line, output)


def _show(line: SelftestLine, output: Output) -> None:
    output.say(f"{line.outcome:<14}  {line.check + ': ' + line.part:<22}  {line.text}")
    if line.advice:
        output.say(f"{'':<14}  next: {line.advice}")


def _names(only: list[str]) -> tuple[str, ...]:
    """Return the chosen names. Raises CliError for an unknown one."""
    names = tuple(name.strip() for part in only for name in part.split(",") if name.strip())
    if unknown := [name for name in names if name not in NAMES]:
        text = f"--only: there is no check {unknown[0]!r}"
        raise CliError(text, remedy=f"use {', '.join(NAMES)}", code=USAGE)
    return names


@contextlib.contextmanager
def _cleaned(output: Output) -> Generator[SelftestSite]:
    """Yield the temporary home, and stop everything at the end. SIGTERM and SIGHUP end the command
    as Ctrl-C does. Further signals do not interrupt the cleaning up."""
    site = SelftestSite(output)
    ending = (signal.SIGTERM, signal.SIGHUP)
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, _interrupt) for number in ending if is_main}
    try:
        yield site
    finally:
        if is_main:
            ignored = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, *ending)}
            before = {**ignored, **before}
        site.close()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _timer(seconds: float) -> Generator[None]:
    """Raise OutOfTime in the block after some seconds."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _out_of_time)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _out_of_time(_number: int, _frame: object) -> None:
    raise OutOfTime


def _secrets(site: SelftestSite) -> Mapping[str, str]:
    """Return the texts that must not appear in the document, each with its placeholder."""
    host = socket.gethostname()
    names = {host: "<host>", host.partition(".")[0]: "<host>"}
    with contextlib.suppress(OSError, KeyError):
        names[getpass.getuser()] = "<user>"
    folders = (Path.home(), site.folder, Path(sys.prefix), Path.cwd(), site.model)
    addresses = [row.address for rows in psutil.net_if_addrs().values() for row in rows]
    return {
        **names,
        **{str(folder): "<path>" for folder in folders},
        **{address.partition("%")[0]: "<address>" for address in addresses if address},
        **({os.environ["USER"]: "<user>"} if os.environ.get("USER") else {}),
    }
