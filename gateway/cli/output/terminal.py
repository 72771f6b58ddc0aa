"""Talks to the terminal: writes tables, lines and JSON.

Results go to standard output; notes, progress and errors go to standard error, so that a pipe
carries results only. With `--json` standard output is one JSON document, errors included; streams
write one document per line. This module escapes control characters in all text for a terminal.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape as without_markup
from rich.table import Table

from gateway.cli.output.errors import WORDS, CliError
from gateway.cli.output.printable import printable

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

QUIET, NORMAL, VERBOSE, DEBUG = -1, 0, 1, 2


def _console(file: TextIO) -> Console:
    return Console(file=file, highlight=False, soft_wrap=True, emoji=False)


@dataclass(slots=True)
class Output:
    """The output of a verb. `verbosity` is -1 (quiet) to 2."""

    as_json: bool = False
    verbosity: int = NORMAL
    out: Console = field(default_factory=lambda: _console(sys.stdout))
    err: Console = field(default_factory=lambda: _console(sys.stderr))
    warned: set[str] = field(default_factory=set[str])

    @property
    def live(self) -> bool:
        """Return whether progress may be drawn: standard error is a terminal, and the output is
        neither quiet nor JSON."""
        return self.err.is_terminal and not self.as_json and self.verbosity >= NORMAL

    def say(self, text: str) -> None:
        """Write a line of the result. With `--json` this writes nothing."""
        if not self.as_json:
            self.out.print(escape(text))

    def note(self, text: str) -> None:
        """Write a remark. When quiet or with `--json` this writes nothing."""
        if self.verbosity >= NORMAL and not self.as_json:
            self.err.print(escape(text), style="dim")

    def warn(self, text: str) -> None:
        """Write a warning, even when quiet or with `--json`. A repeated warning is not written
        again."""
        if text not in self.warned:
            self.warned.add(text)
            self.err.print(f"[bold yellow]warning:[/] {escape(text)}")

    def detail(self, text: str) -> None:
        """Write a remark, only with -v."""
        if self.verbosity >= VERBOSE:
            self.err.print(escape(text), style="dim")

    def document(self, value: Any) -> None:
        """Write the result as JSON. Without `--json` this writes nothing."""
        if self.as_json:
            sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")
            sys.stdout.flush()

    def line(self, value: Any) -> None:
        """Write one of several results as a line of JSON."""
        sys.stdout.write(json.dumps(value, default=str) + "\n")
        sys.stdout.flush()

    def styled(self, text: str, style: str) -> None:
        """Write a line of the result in a style of `rich`. An empty style means plain text."""
        self.out.print(escape(text), style=style or None)

    def write(self, text: str) -> None:
        """Write a piece of text as it arrives, such as tokens of an answer, without a line end. In
        a pipe, control characters are not escaped."""
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()

    def think(self, text: str) -> None:
        """Write a piece of a model's reasoning as it arrives, to standard error."""
        if self.verbosity >= NORMAL:
            self.err.print(escape(text), end="", style="dim")

    @contextlib.contextmanager
    def progress(
        self, text: str, *after: ProgressColumn, before: Sequence[ProgressColumn] = ()
    ) -> Generator[Callable[..., None]]:
        """Yield a function that shows progress: a bar on a terminal, remarks for -v elsewhere.

        It takes the text of the remark, and `rich`'s fields as keyword arguments.
        """
        from rich.progress import BarColumn, Progress, TextColumn

        shown = (*before, TextColumn("{task.description}"), BarColumn(), *after)
        with Progress(*shown, console=self.err, transient=True, disable=not self.live) as bar:
            task = bar.add_task(escape(text), total=None)

            def show(words: str, **drawn: Any) -> None:
                if not self.live:
                    self.detail(words)
                if "description" in drawn:
                    drawn["description"] = escape(drawn["description"])
                bar.update(task, **drawn)

            yield show

    @contextlib.contextmanager
    def waiting(self) -> Generator[Callable[[str], None]]:
        """Yield a function that shows why the command waits. On a terminal, each new reason
        overwrites the line before. Elsewhere the first reason is written as a note, and further
        reasons are written only with -v. An empty text ends the wait."""
        line = self.err.status("") if self.live else None
        remarks = 0

        def say(words: str) -> None:
            nonlocal remarks
            if line is not None:
                line.update(escape(words))
                (line.start if words else line.stop)()
            elif words:
                (self.detail if remarks else self.note)(words)
                remarks += 1

        try:
            yield say
        finally:
            say("")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Write a plain table; not with `--json`. Columns with a leading `>` are right-aligned.

        A narrow terminal folds cells and never cuts them. A pipe gets one unfolded line per row.
        """
        if self.as_json:
            return
        cells = [
            [printable(str(cell)) for _, cell in zip(columns, row, strict=True)] for row in rows
        ]
        if not self.out.is_terminal:
            for line in _lines(columns, cells):
                self.out.print(line, markup=False)
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            side = "right" if column.startswith(">") else "left"
            table.add_column(column.lstrip(">"), justify=side, overflow="fold")
        for row in cells:
            table.add_row(*map(without_markup, row))
        self.out.print(table, soft_wrap=False)

    def error(self, problem: CliError) -> None:
        """Write an error: the problem, the evidence and the remedy."""
        if self.as_json:
            fields = {"message": problem.message, "remedy": problem.remedy, "code": problem.code}
            fields["reason"] = WORDS.get(problem.code, "failed")
            if problem.details:
                fields["details"] = problem.details
            self.document({"error": fields})
            return
        self.err.print(f"[bold red]error:[/] {escape(problem.message)}")
        if problem.details:
            self.err.print(escape(problem.details), style="dim")
        if problem.remedy:
            self.err.print(f"[bold]next:[/] {escape(problem.remedy)}")


def escape(text: str) -> str:
    """Return a text with control characters escaped, which `rich` writes without interpreting
    markup."""
    return without_markup(printable(text))


def _lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table. Trailing spaces are removed; line breaks in cells become
    spaces."""
    head = [column.lstrip(">") for column in columns]
    flat = [[" ".join(cell.splitlines()) for cell in row] for row in (head, *rows)]
    widths = [max(map(cell_len, cells)) for cells in zip(*flat, strict=True)]
    for row in flat:
        yield "  ".join(
            " " * (width - cell_len(cell)) + cell if column.startswith(">")
            else cell + " " * (width - cell_len(cell))
            for cell, column, width in zip(row, columns, widths, strict=True)
        ).rstrip()  # fmt: skip
