"""Lines of styled pieces, and tables that fit a width.

Pure. A table that is too wide first loses columns, then its texts are cut. Texts are never folded.
Widths are in terminal cells, so that wide characters count twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.cells import cell_len, set_cell_size

Tone = Literal["", "head", "dim", "good", "warn", "bad"]
Piece = tuple[str, Tone]
Line = tuple[Piece, ...]
GAP = "  "
LEAST_CELLS = 6
"""A text is never cut below this width."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `right`: right-aligned. `spare`: if the table is too wide, the column
    with the highest value is left out first; a column with 0 always stays. `gives`: the column's
    texts are cut if the table is still too wide."""

    title: str
    right: bool = False
    spare: int = 0
    gives: bool = False


@dataclass(frozen=True, slots=True)
class TableRow:
    """The cells of a row, and the lines below it."""

    cells: Sequence[Piece]
    notes: Sequence[Line] = field(default_factory=tuple)


def table(columns: Sequence[Column], rows: Iterable[TableRow], width: int) -> list[list[Line]]:
    """Return a table as groups of lines: the head, then each row with its notes. No line is wider
    than `width`."""
    row_list = list(rows)
    shown = list(range(len(columns)))
    widths = [
        max(cell_len(column.title), *(cell_len(row.cells[at][0]) for row in row_list), 0)
        for at, column in enumerate(columns)
    ]
    while _total(widths, shown) > width and any(columns[at].spare for at in shown):
        shown.remove(max(shown, key=lambda at: columns[at].spare))
    for at in shown:
        over = _total(widths, shown) - width
        if columns[at].gives and over > 0:
            widths[at] = max(LEAST_CELLS, widths[at] - over)
    head = _line(columns, shown, widths, [(column.title, "dim") for column in columns], width)
    groups = [[head]]
    for row in row_list:
        notes = [cut(note, width) for note in row.notes]
        groups.append([_line(columns, shown, widths, row.cells, width), *notes])
    return groups


def cut(line: Line, width: int) -> Line:
    """Return the line cut to `width` cells; a cut line ends in an ellipsis."""
    if sum(cell_len(text) for text, _ in line) <= width:
        return line
    pieces: list[Piece] = []
    left = width - 1
    for text, tone in line:
        size = cell_len(text)
        if size > left:
            pieces.append((set_cell_size(text, max(0, left)).rstrip() + "…", tone))
            break
        pieces.append((text, tone))
        left -= size
    return tuple(pieces)


def fold(notes: Sequence[Line], width: int, most: int = 3) -> list[Line]:
    """Return notes, each of one piece, indented and folded at word boundaries. There are at most
    `most` lines; a text that was cut ends in an ellipsis."""
    lines: list[Line] = []
    for ((text, tone),) in notes:
        line = " "
        for word in text.split():
            if len(line) + 1 + cell_len(word) > width and line.strip():
                lines.append(((line, tone),))
                line = " "
            line = f"{line} {word}"
        lines.append(((line, tone),))
    if len(lines) > most:
        ((text, tone),) = lines[most - 1]
        lines[most - 1 :] = [cut(((f"{text} …", tone),), width)]
    return lines


def plain(line: Line) -> str:
    """Return the text of a line."""
    return "".join(text for text, _ in line).rstrip()


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[at] for at in shown) + len(GAP) * (len(shown) - 1)


def _line(
    columns: Sequence[Column],
    shown: Sequence[int],
    widths: Sequence[int],
    cells: Sequence[Piece],
    width: int,
) -> Line:
    pieces: list[Piece] = []
    for at in shown:
        text, tone = cells[at]
        ((text, _),) = cut(((text, tone),), widths[at])
        room = " " * (widths[at] - cell_len(text))
        gap = GAP if pieces else ""
        pieces.append((f"{gap}{room}{text}" if columns[at].right else f"{gap}{text}{room}", tone))
    return cut(tuple(pieces), width)
