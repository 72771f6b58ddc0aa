"""Tables: a pipe gets one line a row with nothing cut, a narrow terminal folds."""

from __future__ import annotations

import io

from rich.console import Console

from gateway.cli.output.terminal import Output

COLUMNS = ("node", "id", ">memory", "models")
ROW = ("lab-1", "n60f4dd9d5b", "25.3 GB", ", ".join(f"model-{number}" for number in range(30)))


def shown(*, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=terminal, width=40, color_system=None, soft_wrap=True
    )
    Output(out=console).table(COLUMNS, [ROW])
    return out.getvalue()


def test_a_pipe_gets_a_line_for_each_row() -> None:
    head, row = shown(terminal=False).splitlines()
    assert head.split() == ["node", "id", "memory", "models"]
    assert all(cell in row for cell in ROW)


def test_no_line_in_a_pipe_is_longer_than_its_words() -> None:
    out = io.StringIO()
    output = Output(out=Console(file=out, width=40, color_system=None, soft_wrap=True))
    output.table((">n", "found"), [("1", "x" * 400), ("10", "[two]\nlines"), ("7", "")])
    assert out.getvalue().splitlines() == [" n  found", " 1  " + "x" * 400, "10  [two] lines", " 7"]


def test_a_narrow_terminal_loses_nothing() -> None:
    lines = shown(terminal=True).splitlines()
    assert max(map(len, lines)) <= 40
    assert "…" not in "".join(lines)
    assert sum(line.count("model-") for line in lines) == 30
