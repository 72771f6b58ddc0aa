"""`shoal monitor` on a real node: in a pipe, and on a terminal that it leaves as it was."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.harness.nodes import MODEL, TREE, Node, answered, eventually, kill, typed

ENTERS, LEAVES = "\x1b[?1049h", "\x1b[?1049l"
HIDES, SHOWS = "\x1b[?25l", "\x1b[?25h"
HOME, CLEARS = "\x1b[H", "\x1b[2J"
COLOURED = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38)[;m]")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
CODE = "import sys; from gateway.cli.app import main; sys.exit(main())"


@pytest.fixture(scope="module")
def node(shared_keyed: Node) -> Node:
    return shared_keyed


class Terminal:
    """A pseudo-terminal with a program on it."""

    def __init__(self, node: Node, *words: str, size: tuple[int, int], **env: str) -> None:
        self._master, self._slave = pty.openpty()
        self.before = termios.tcgetattr(self._slave)
        self.resize(size)
        plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")}
        self.program = subprocess.Popen(
            [sys.executable, "-P", "-c", CODE, *words],
            cwd=tempfile.gettempdir(),
            env={**plain, "PYTHONPATH": str(TREE), "TERM": "xterm-256color", **node.env, **env},
            stdin=self._slave, stdout=self._slave, stderr=self._slave,
            preexec_fn=self._take_terminal, start_new_session=True,
        )  # fmt: skip
        self.text = ""

    def _take_terminal(self) -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for number in (signal.SIGINT, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)

    def resize(self, size: tuple[int, int]) -> None:
        rows, columns = size
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def heard(self, seconds: float = 0.05) -> str:
        """Read what has come, and return all of it."""
        while select.select([self._master], [], [], seconds)[0]:
            try:
                self.text += os.read(self._master, 65536).decode(errors="replace")
            except OSError:
                break
        return self.text

    def until(self, condition: Callable[[str], Any], what: str) -> Any:
        return eventually(lambda: condition(self.heard()), 60, f"{what} in {self.text[-2000:]!r}")

    def frames(self) -> list[list[str]]:
        """Return the lines of each picture that was drawn whole, without colours."""
        parts = self.heard().split(HOME)[1:-1]
        return [[line.rstrip() for line in re.split(r"\r?\n\r?", ESCAPE.sub("", one))]
                for one in parts]  # fmt: skip

    def ended(self) -> int:
        code = self.program.wait(30)
        self.heard()
        return code

    def close(self) -> None:
        if self.program.poll() is None:
            self.program.kill()
            self.program.wait()
        os.close(self._master)
        os.close(self._slave)

    def is_as_before(self) -> bool:
        """Return whether the first screen is shown, with its cursor, and nothing else was set."""
        shown = self.text.rfind(LEAVES) > self.text.rfind(ENTERS)
        cursor = self.text.rfind(SHOWS) > self.text.rfind(HIDES)
        return shown and cursor and termios.tcgetattr(self._slave) == self.before


@contextmanager
def terminal(
    node: Node, *words: str, size: tuple[int, int] = (30, 100), **env: str
) -> Iterator[Terminal]:
    made = Terminal(node, "monitor", "--interval", "0.2", *words, size=size, **env)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.proof
def test_a_pipe_gets_a_line_for_each_look_and_is_told_when_the_gateway_is_away(node: Node) -> None:
    watching = typed(node, "monitor", "--interval", "0.2")
    try:
        assert watching.stdout is not None
        lines = iter(watching.stdout.readline, "")
        # the process of the gateway that it asks may not have heard of the instance yet
        first = next(line for line in lines if "1 instance, 1 ready" in line)
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ  1 node ok; 1 instance, 1 ready; ", first)
        assert "\x1b" not in first
        answered = node.stream("hi", max_tokens=20, ignore_eos=True).wait(60)
        assert answered.done
        next(line for line in lines if re.search(r"ttft [\d.]+ m?s / ", line))
        kill(node.pid("gateway"))
        lost = next(line for line in lines if "no connection for" in line)
        assert "retrying: " in lost
        back = next(line for line in lines if "the node answers again after" in line)
        assert "1 node ok" in back or next(line for line in lines if "1 node ok" in line)
        watching.send_signal(signal.SIGINT)
        rest, said = watching.communicate(timeout=30)
        assert watching.returncode == 130 and "Traceback" not in rest + said
    finally:
        watching.kill()
        watching.communicate()


def test_one_look_is_one_line_and_in_json_has_what_the_api_tells(node: Node) -> None:
    eventually(node.ready, 60, "the node serves")
    done = node.shoal("monitor", "--once")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 1
    told = answered(
        lambda: json.loads(node.shoal("monitor", "--once", "--json").stdout),
        lambda told: told.get("cluster", {}).get("instances") and told["pool"]["copies"],
        "a gateway that has begun anew knows the copy",
    )
    assert [one["model"] for one in told["cluster"]["instances"]] == [MODEL]
    assert told["pool"]["copies"][0]["model"] == MODEL and told["pool"]["queue"] == []


def test_a_terminal_has_a_picture_that_is_drawn_over_and_gone_at_the_end(node: Node) -> None:
    with terminal(node) as seen:
        seen.until(lambda text: text.count(HOME) > 4, "four pictures")
        assert seen.text.index(ENTERS) < seen.text.index(HOME)
        assert CLEARS not in seen.text, "it is drawn over, not cleared: that would flicker"
        lines = seen.frames()[-1]
        assert len(lines) <= 30 and max(map(len, lines)) <= 100
        assert lines[0].startswith("shoal at reef")
        assert any(line.startswith(MODEL) for line in lines)
        assert COLOURED.search(seen.text)
        seen.resize((12, 44))
        seen.until(lambda _: max(map(len, seen.frames()[-1])) <= 44, "it fits")
        assert len(seen.frames()[-1]) <= 12
        seen.press("\x03")
        assert seen.ended() == 130
        assert seen.is_as_before() and "Traceback" not in seen.text


def test_no_colour_is_used_where_none_is_wanted(node: Node) -> None:
    with terminal(node, NO_COLOR="1") as seen:
        seen.until(lambda text: text.count(HOME) > 2, "two pictures")
        assert not COLOURED.search(seen.text)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.proof)]
)
def test_a_signal_leaves_the_terminal_as_it_was(node: Node, number: signal.Signals) -> None:
    with terminal(node) as seen:
        seen.until(lambda text: text.count(HOME) > 2, "two pictures")
        seen.program.send_signal(number)
        assert seen.ended() == 128 + number
        assert seen.is_as_before() and "Traceback" not in seen.text


def test_ctrl_z_gives_the_terminal_back_until_it_goes_on(node: Node) -> None:
    with terminal(node) as seen:
        seen.until(lambda text: text.count(HOME) > 2, "two pictures")
        seen.press("\x1a")
        eventually(
            lambda: os.waitpid(seen.program.pid, os.WUNTRACED | os.WNOHANG)[0], 30, "it stops"
        )
        seen.heard()
        assert seen.is_as_before()
        before = seen.text.count(HOME)
        seen.program.send_signal(signal.SIGCONT)
        seen.until(lambda text: text.count(HOME) > before + 2, "it goes on")
        assert seen.text.rfind(ENTERS) > seen.text.rfind(LEAVES)
        seen.press("\x03")
        assert seen.ended() == 130 and seen.is_as_before()


def test_a_terminal_that_can_do_little_gets_lines(node: Node) -> None:
    with terminal(node, TERM="dumb") as seen:
        seen.until(lambda text: text.count("1 node ok") > 2, "lines")
        assert "\x1b" not in seen.text
