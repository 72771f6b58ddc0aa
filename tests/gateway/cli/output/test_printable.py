"""What strangers name reaches a terminal as text alone, through every way of an output."""

from __future__ import annotations

import ast
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import gateway.cli
from gateway.cli.output.errors import CliError
from gateway.cli.output.log_lines import parse_line
from gateway.cli.output.printable import printable, printable_line
from gateway.cli.output.terminal import VERBOSE, Output
from gateway.cli.verbs.monitor import verb as monitor

EVIL = "a\x1b]0;owned\x07\x1b[2Jb\x9b1mc\u202ed\re\x08"
SHOWN = r"a\x1b]0;owned\x07\x1b[2Jb\x9b1mc\u202ed\re\x08"


class Terminal(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


def progress(output: Output) -> None:
    with output.progress(EVIL) as show:
        show(EVIL, description=EVIL)


def waiting(output: Output) -> None:
    with output.waiting() as say:
        say(EVIL)


def told(output: Output) -> None:
    output.error(CliError(EVIL, remedy=EVIL, details=EVIL))


WAYS: dict[str, Callable[[Output], None]] = {
    "say": lambda output: output.say(EVIL),
    "note": lambda output: output.note(EVIL),
    "warn": lambda output: output.warn(EVIL),
    "detail": lambda output: output.detail(EVIL),
    "styled": lambda output: output.styled(EVIL, ""),
    "write": lambda output: output.write(EVIL),
    "think": lambda output: output.think(EVIL),
    "table": lambda output: output.table(["client"], [[EVIL]]),
    "line": lambda output: output.line(EVIL),
    "error": told,
    "progress": progress,
    "waiting": waiting,
}


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_no_way_of_an_output_gives_a_terminal_a_command(
    way: str, is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    console = Console(
        file=screen, force_terminal=is_terminal, color_system=None, width=200, soft_wrap=True
    )
    WAYS[way](Output(verbosity=VERBOSE, out=console, err=console))
    written = screen.getvalue()
    assert SHOWN in written or way == "line"
    for command in ("\x1b]", "\x1b[2J", "\x9b", "\u202e", "\x07", "\x08"):
        assert command not in written, repr(written)


def test_a_pipe_gets_an_answer_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Output().write(EVIL)
    assert capsys.readouterr().out == EVIL


def test_every_public_way_is_tried() -> None:
    others = {"document", "live"}
    ways = {name for name, one in vars(Output).items() if callable(one) or name == "live"}
    assert {name for name in ways if name[0] != "_"} == WAYS.keys() | others


def test_only_an_output_and_the_monitor_write_to_a_terminal() -> None:
    found: set[str] = set()
    for path in Path(gateway.cli.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="print")):
                    found.add(path.name)
                case ast.Call(func=ast.Attribute(attr="print")):
                    found.add(path.name)
                case ast.Call(
                    func=ast.Attribute(attr="write", value=ast.Attribute(attr="stdout" | "stderr"))
                ):
                    found.add(path.name)
                case _:
                    pass
    assert found == {"terminal.py", "verb.py"}


def test_a_picture_of_the_cluster_has_no_command() -> None:
    line = monitor._styled_text(((EVIL, "bad"),), faded=False)
    assert line.plain == SHOWN


def test_a_line_of_a_log_stays_one_line() -> None:
    line = '{"time": "2026-01-01T00:00:00Z", "message": "a client asks", "client": "x\\n\\u001b[A"}'
    text = parse_line(line, "gateway").text()
    assert r"client=x\n\x1b[A" in text and "\n" not in text


@given(st.text(st.characters(exclude_categories=())))
def test_what_is_printable_stays_and_all_else_shows_itself(text: str) -> None:
    found = printable_line(text)
    assert all(one.isprintable() or one not in "\n\t\x1b\x9b\r\x7f\u202e\u2028" for one in found)
    assert printable_line(found) == found
    found.encode()
    assert printable(text).count("\n") == text.count("\n")
    if text.isprintable():
        assert found == text
