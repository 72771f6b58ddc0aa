"""Lines of pieces, and tables that fit a width: columns are left out, then texts cut, never folded.

Pure. Widths are those of a terminal's cells, so that wide characters count twice.
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
"""Minimum width to which a text is cut."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column's title; `right` aligns it so. The higher `spare` is, the earlier it is left out
    where there is no room; with 0 it stays. `gives`: its texts are cut when all others stay."""

    title: str
    right: bool = False
    spare: int = 0
    gives: bool = False


@dataclass(frozen=True, slots=True)
class TableRow:
    """The cells of a row, and lines that stand under it."""

    cells: Sequence[Piece]
    notes: Sequence[Line] = field(default_factory=tuple)


def table(columns: Sequence[Column], rows: Iterable[TableRow], width: int) -> list[list[Line]]:
    """Return a table as groups of lines: the head, then each row with its notes. No line is wider
    than `width`."""
    held = list(rows)
    kept = list(range(len(columns)))
    widths = [
        max(cell_len(column.title), *(cell_len(row.cells[at][0]) for row in held), 0)
        for at, column in enumerate(columns)
    ]
    while _total(widths, kept) > width and any(columns[at].spare for at in kept):
        kept.remove(max(kept, key=lambda at: columns[at].spare))
    for at in kept:
        over = _total(widths, kept) - width
        if columns[at].gives and over > 0:
            widths[at] = max(LEAST_CELLS, widths[at] - over)
    head = _line(columns, kept, widths, [(column.title, "dim") for column in columns], width)
    groups = [[head]]
    for row in held:
        notes = [cut(note, width) for note in row.notes]
        groups.append([_line(columns, kept, widths, row.cells, width), *notes])
    return groups


def cut(line: Line, width: int) -> Line:
    """Return the line, at most so many cells of it; what is cut ends in an ellipsis."""
    if sum(cell_len(text) for text, _ in line) <= width:
        return line
    kept: list[Piece] = []
    left = width - 1
    for text, tone in line:
        size = cell_len(text)
        if size > left:
            kept.append((set_cell_size(text, max(0, left)).rstrip() + "…", tone))
            break
        kept.append((text, tone))
        left -= size
    return tuple(kept)


def folded(notes: Sequence[Line], width: int, most: int = 3) -> list[Line]:
    """Return notes of one piece each, on as many lines as they need, each indented, `most` in all;
    what is left out then ends in an ellipsis."""
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


def _total(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[at] for at in kept) + len(GAP) * (len(kept) - 1)


def _line(
    columns: Sequence[Column],
    kept: Sequence[int],
    widths: Sequence[int],
    cells: Sequence[Piece],
    width: int,
) -> Line:
    pieces: list[Piece] = []
    for at in kept:
        text, tone = cells[at]
        ((text, _),) = cut(((text, tone),), widths[at])
        room = " " * (widths[at] - cell_len(text))
        gap = GAP if pieces else ""
        pieces.append((f"{gap}{room}{text}" if columns[at].right else f"{gap}{text}{room}", tone))
    return cut(tuple(pieces), width)
