"""Talks to the node's API and the terminal: `shoal monitor` shows the cluster until Ctrl-C.

The terminal is restored however the verb ends or is suspended. If the node stops answering, the
monitor waits for it and shows how long it has waited.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.control import Control
from rich.screen import Screen
from rich.text import Text

from bus.process.clock import wall
from gateway.cli.command import Invocation
from gateway.cli.node.node_api import NodeApi
from gateway.cli.output.amounts import span
from gateway.cli.output.errors import CliError
from gateway.cli.output.printable import printable_line
from gateway.cli.output.terminal import Output
from gateway.cli.verbs.monitor.figures import LastMinute
from gateway.cli.verbs.monitor.picture import ASCII, BLOCKS, ClusterLook, picture, sentence
from gateway.cli.verbs.monitor.tables import Line

ANSWER_S = 5.0
LOOK_S = 0.1
BACK_S = 10.0
STYLES: Mapping[str, str] = {
    "": "",
    "head": "bold",
    "dim": "dim",
    "good": "green",
    "warn": "yellow",
    "bad": "red",
}


def monitor(
    invocation: Invocation,
    once: Annotated[bool, typer.Option("--once", help="Print one line and exit.")] = False,
    interval_s: Annotated[
        float,
        typer.Option(
            "--interval", min=0.2, max=3600.0, metavar="S", help="Refresh every S seconds."
        ),
    ] = 1.0,
) -> None:
    """Watch the cluster: nodes, instances, queues, latencies, errors.

    On a terminal it draws a picture until Ctrl-C; in a pipe it prints one line per refresh. With
    `--json` each line is an object. If the node stops answering, the monitor waits and reconnects.
    """
    watcher = Watcher(invocation.api())
    output = invocation.output
    # the first look fails if no node answers
    seen = watcher.look()
    if once:
        _say(output, watcher, seen)
    elif output.as_json or not sys.stdout.isatty() or output.out.is_dumb_terminal:
        while True:
            _say(output, watcher, seen)
            time.sleep(interval_s)
            seen = watcher.look_again()
    else:
        with _ends_by_signal(), Picture() as shown:
            while True:
                shown.draw(seen)
                shown.rest(interval_s, seen)
                seen = watcher.look_again()


class Watcher:
    """Polls a node. It remembers since when the node has not answered."""

    def __init__(self, api: NodeApi) -> None:
        self._api = api
        self._minute = LastMinute()
        self._last: ClusterLook | None = None
        self._lost_at: float | None = None
        self._back: tuple[float, str] | None = None
        self.trouble = ""
        self.at_s = 0.0

    def look(self) -> ClusterLook:
        """Read the cluster's state from the node and return it. Raises CliError."""
        self.at_s = wall()
        cluster = self._api.get("/metrics/snapshot", timeout_s=ANSWER_S)
        pool = self._api.get("/pool", timeout_s=ANSWER_S)
        try:
            spell = self._minute.add(cluster["at_s"], cluster["counters"])
            seen = ClusterLook(cluster, pool, spell)
            sentence(seen)
        except (KeyError, TypeError, ValueError) as error:
            raise CliError(
                f"this version of shoal cannot read the answer of {self._api.url} ({error!r})",
                remedy="use the same version of `shoal` as the node",
            ) from error
        self._last = seen
        return seen

    def look_again(self) -> ClusterLook:
        """Read the cluster's state again and return it. If the node does not answer, return the
        last state, with a remark about the connection."""
        now = time.monotonic()
        assert self._last is not None
        before = self._last
        try:
            seen = self.look()
        except CliError as problem:
            self._lost_at = now if self._lost_at is None else self._lost_at
            self.trouble = problem.message
            remark = f"no connection for {span(now - self._lost_at)}, retrying: {problem.message}"
            return ClusterLook(before.cluster, before.pool, before.spell, remark, is_lost=True)
        if self._lost_at is not None:
            self._back = (now, f"the node answers again after {span(now - self._lost_at)}")
            self._lost_at = None
        if self._back is None or now - self._back[0] > BACK_S:
            return seen
        return ClusterLook(seen.cluster, seen.pool, seen.spell, self._back[1])


def _say(output: Output, watcher: Watcher, seen: ClusterLook) -> None:
    """Write the state of the cluster as one line. If the connection is lost, write only the
    remark."""
    at = datetime.fromtimestamp(watcher.at_s, tz=UTC).isoformat(timespec="seconds")
    if output.as_json:
        head: dict[str, Any] = {"at": at.replace("+00:00", "Z"), "remark": seen.remark}
        lost = {"cluster": None, "pool": None, "last_minute": None}
        current = {"cluster": seen.cluster, "pool": seen.pool, "last_minute": seen.spell.plain()}
        output.line({**head, **(lost if seen.is_lost else current)})
        return
    words = seen.remark if seen.is_lost else sentence(seen)
    output.write(f"{at.replace('+00:00', 'Z')}  {words}\n")


class Picture:
    """The terminal's alternate screen. Each picture is drawn in one write."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, emoji=False)
        self._blocks = BLOCKS if "utf" in self._console.encoding else ASCII
        self._size = self._console.size
        self._is_suspended = False

    def __enter__(self) -> Picture:
        self._show(True)
        self._before = signal.signal(signal.SIGTSTP, self._suspended)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTSTP, self._before)
        self._show(False)

    def draw(self, seen: ClusterLook) -> None:
        """Draw the state of the cluster, in one write."""
        self._size = self._console.size
        width, height = self._size
        lines = picture(seen, width, height, blocks=self._blocks)
        text = Text("\n", no_wrap=True, overflow="crop").join(
            _styled_text(line, faded=seen.is_lost) for line in lines
        )
        with self._console as console:
            console.control(Control.home())
            console.print(Screen(text), end="")

    def rest(self, seconds: float, seen: ClusterLook) -> None:
        """Wait for `seconds`. If the terminal's size changes meanwhile, draw the picture again;
        Ctrl-Z suspends the verb."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(LOOK_S, left))
            if self._is_suspended:
                self._suspend()
                self.draw(seen)
            elif self._console.size != self._size:
                self.draw(seen)

    def _show(self, on: bool) -> None:
        self._console.set_alt_screen(on)
        self._console.show_cursor(not on)

    def _suspended(self, _number: int, _frame: object) -> None:
        self._is_suspended = True

    def _suspend(self) -> None:
        """Restore the terminal and stop this process. When the process is resumed, take the screen
        again."""
        self._is_suspended = False
        self._show(False)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._show(True)


def _styled_text(line: Line, *, faded: bool) -> Text:
    text = Text(no_wrap=True, overflow="crop")
    for piece, tone in line:
        text.append(printable_line(piece), style="dim" if faded and tone != "bad" else STYLES[tone])
    return text


@contextlib.contextmanager
def _ends_by_signal() -> Generator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit, so that the terminal is restored."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
