"""English text of the repository as sentences with their places: pages, docstrings, messages.

Reads files. Code blocks are left out; inline code counts as one word. Generated pages are left
out: their text has a source that is read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from tests.house.trees import Module

Kind = Literal["page", "docstring", "message"]

FENCE = re.compile(r"^\s*(```|~~~)")
GENERATED = re.compile(r"(?:Made|Generated)\b[^.;]*`make docs`[^.]*do not edit", re.DOTALL)
TOUR_MARK = "\nMade by `make docs`"
INLINE = re.compile(r"(`+)(.+?)\1")
PLACEHOLDER = re.compile(r"\x00")
LINK_END = re.compile(r"\]\([^)\s]*\)")
MARKUP = re.compile(r"\*\*|<[^>\n]{1,80}>|(?<!\w)[*_]|[*_](?!\w)|[\[\]]")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(]*[A-Z0-9])")
WORD = re.compile(r"[^\W_]")
PROSE = re.compile(r"[A-Za-z][a-z']*(?:[ ,][ \x00a-zA-Z0-9'()-]+){3,}")
NO_PROSE = re.compile(
    r"^\s*(?:SELECT|INSERT|CREATE|UPDATE|DELETE|ALTER|PRAGMA|WITH|BEGIN|DROP)\b"
    r"|[{}\\^$|]{2}|\(\?|^\s*#!|</?\w+>|::=|\{%|^usage:"
)


@dataclass(frozen=True)
class Sentence:
    """One sentence, its inline code replaced by a word of the same length."""

    path: str
    line: int
    kind: Kind
    text: str
    source: str
    """The sentence as written, on one line."""

    @property
    def words(self) -> int:
        """Words with at least one letter or digit."""
        return sum(bool(WORD.search(word)) for word in self.text.split())


@dataclass(frozen=True)
class Docstring:
    """The docstring of a function, with the words that its name and types say."""

    path: str
    line: int
    text: str
    signature: str
    """Name, parameters, annotations and class, as text."""


def pages(root: Path) -> list[Path]:
    """Return the pages: those at the top, and all under docs/."""
    tops = [root / "README.md", root / "CONTRIBUTING.md"]
    return [page for page in [*tops, *sorted((root / "docs").rglob("*.md"))] if page.exists()]


def page_sentences(path: str, text: str) -> Iterator[Sentence]:
    """Yield the sentences of a page by hand: paragraphs, list items, cells of tables."""
    if GENERATED.search(text[:900]):
        return
    text = text.partition(TOUR_MARK)[0]
    for line, block in _blocks(text):
        yield from _split(path, line, "page", block)


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each paragraph, list item and table cell."""
    lines = text.split("\n")
    start, block, fenced = 0, list[str](), False
    for number, line in enumerate([*lines, ""], 1):
        if FENCE.match(line):
            fenced = not fenced
            line = ""
        elif fenced:
            continue
        is_table = line.lstrip().startswith("|")
        ends = not line.strip() or is_table or line.startswith("#") or ITEM.match(line)
        if ends and block:
            yield start, "\n".join(block)
            block = []
        if is_table:
            follower = lines[number] if number < len(lines) else ""
            if not set(line) <= set("|-: ") and not set(follower.strip() or "x") <= set("|-: "):
                yield from ((number, cell.strip()) for cell in re.split(r"(?<!\\)\|", line))
        elif line.strip() and not line.startswith("#"):
            start = start if block else number
            block.append(ITEM.sub("", line).lstrip("> ") if not block else line.strip())


def comment_sentences(path: str, text: str) -> Iterator[Sentence]:
    """Yield the sentences of a TOML file's comments."""
    block: list[str] = []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if line.startswith("#"):
            block.append(line.lstrip("# "))
        elif block:
            yield from _split(path, number - len(block), "page", "\n".join(block))
            block = []


def module_sentences(module: Module) -> Iterator[Sentence]:
    """Yield the sentences of a module's docstrings and messages."""
    path, silent = module.path, set[int]()
    for node in module.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent.add(id(node.value))
            if isinstance(node.value.value, str):
                yield from docstring_sentences(path, node.value.lineno, node.value.value)
        elif isinstance(node, ast.JoinedStr):
            silent.update(id(part) for part in node.values)
            yield from _message(path, node.lineno, _joined(node))
        elif isinstance(node, ast.Constant) and id(node) not in silent:
            yield from _message(path, node.lineno, str(node.value))


def _joined(node: ast.JoinedStr) -> str:
    """Return an f-string's text with one placeholder for each expression."""
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else "\x00" for part in node.values
    )


def _message(path: str, line: int, text: str) -> Iterator[Sentence]:
    if not PROSE.search(text) or NO_PROSE.search(text):
        return
    for number, block in _paragraphs(text):
        yield from _split(path, line + number, "message", block)


def docstring_sentences(path: str, line: int, text: str) -> Iterator[Sentence]:
    """Yield the sentences of a docstring that starts on a line."""
    for number, block in _paragraphs(text):
        yield from _split(path, line + number, "docstring", block)


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield (lines from the start, text) of each paragraph and list item, without code.

    A line is code where it is indented by four or more beyond the text's own margin.
    """
    lines = text.split("\n")
    indents = [len(x) - len(x.lstrip()) for x in lines[1:] if x.strip()]
    margin = min(indents, default=0)
    start, block = 0, list[str]()
    for number, line in enumerate([*lines, ""]):
        is_code = number > 0 and len(line) - len(line.lstrip()) >= margin + 4
        if (not line.strip() or is_code or ITEM.match(line)) and block:
            yield start, "\n".join(block)
            block = []
        if line.strip() and not is_code:
            start = start if block else number
            block.append(ITEM.sub("", line) if not block else line.strip())


def _split(path: str, line: int, kind: Kind, block: str) -> Iterator[Sentence]:
    plain = plain_text(block)
    starts = [0, *(match.end() for match in END.finditer(plain)), len(plain)]
    for start, end in pairwise(starts):
        text = " ".join(plain[start:end].split())
        if text:
            source = " ".join(block[start:end].replace("\x00", "{}").split())
            yield Sentence(path, line + plain.count("\n", 0, start), kind, text, source)


def plain_text(block: str) -> str:
    """Return a block of the same length: inline code as one word, markup as blanks."""

    def blanked(match: re.Match[str]) -> str:
        return " " * len(match[0])

    def word(match: re.Match[str]) -> str:
        return "X" + "x" * (len(match[0]) - 1)

    plain = INLINE.sub(word, block)
    plain = LINK_END.sub(blanked, plain)
    return MARKUP.sub(blanked, PLACEHOLDER.sub("X", plain))


def function_docstrings(module: Module) -> Iterator[Docstring]:
    """Yield the docstring of each function and method, with its signature."""
    owners = {
        id(member): node.name
        for node in module.nodes
        if isinstance(node, ast.ClassDef)
        for member in node.body
    }
    for node in module.nodes:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        text = ast.get_docstring(node)
        if text:
            returns = "" if node.returns is None else ast.unparse(node.returns)
            words = (node.name, ast.unparse(node.args), returns, owners.get(id(node), ""))
            signature = " ".join([*words, module.name])
            yield Docstring(module.path, node.body[0].lineno, text, signature)
