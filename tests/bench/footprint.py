"""Measures what shoal weighs, as one table: packages, imports, lines, words.

    python -m tests.bench.footprint [--root DIR]

Also measures another checkout (`--root`) with this environment. Import seconds are those of a
processor (user and system), the least of five new processes each. Lines are counted without
docstrings, comments and blank lines. An idle node is measured by `tests.bench.idle`, a start by
`tests.bench.node_start`; `make test` prints its own minutes.
"""

from __future__ import annotations

import argparse
import ast
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("bus", "conf", "gateway", "master", "runner", "telemetry", "worker")
PROCESSES = {
    "bus": "import bus.__main__",
    "master": "import master.__main__",
    "worker": "import worker.__main__",
    "telemetry": "import telemetry.__main__",
    "gateway": "import gateway.__main__",
    "HTTP process": "import gateway.__main__, gateway.http.app",
    "runner": "import runner.__main__, runner.text, runner.mlx.engine",
    "shoal ps": "import gateway.cli.app, gateway.cli.verbs.models.instances",
}
"""What each process has imported when it begins to work."""
TRIES = 5


def packages() -> tuple[int, float]:
    """Return how many distributions are installed, and their megabytes on the disk."""
    installed = list(importlib.metadata.distributions())
    files = {file.locate() for found in installed for file in found.files or ()}
    sizes = (Path(str(file)).stat().st_size for file in files if Path(str(file)).is_file())
    return len(installed), sum(sizes) / 1e6


def import_seconds(code: str, root: Path) -> float:
    """Return the least processor seconds of a process that runs `code`, above an empty one's."""
    return min(_cpu_seconds(code, root) for _ in range(TRIES)) - min(
        _cpu_seconds("", root) for _ in range(TRIES)
    )


def _cpu_seconds(code: str, root: Path) -> float:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": ""},
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"`{code}` ended with status {process.returncode}")
    return used.ru_utime + used.ru_stime


def code_lines(files: Iterable[Path]) -> int:
    """Return the lines of Python files that hold code: no docstring, comment or blank line."""
    return sum(len(_code_lines_of(path.read_text())) for path in files)


def _code_lines_of(text: str) -> set[int]:
    lines = text.splitlines()
    code = {n for n, line in enumerate(lines, 1) if line.strip() and line.strip()[0] != "#"}
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", ())
        for statement in body if isinstance(body, list) else ():
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if is_text and isinstance(statement.value.value, str):
                code -= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return code


def words(files: Iterable[Path]) -> int:
    """Return the words of text files."""
    return sum(len(path.read_text().split()) for path in files)


def rows(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the figure of each row."""
    count, megabytes = packages()
    yield "installed packages", f"{count}, {megabytes:,.0f} MB"
    for name, code in PROCESSES.items():
        yield f"imports of {name}", f"{import_seconds(code, root):.2f} s"
    product = (path for name in PRODUCT for path in (root / name).rglob("*.py"))
    yield "lines of product", f"{code_lines(product):,}"
    yield "lines of tests", f"{code_lines((root / 'tests').rglob('*.py')):,}"
    pages = [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").rglob("*.md")]
    yield "words of docs", f"{words(pages):,}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Print what shoal weighs.")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    table = Table("what", "figure")
    for row in rows(parser.parse_args().root):
        table.add_row(*row)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
