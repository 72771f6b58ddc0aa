"""Write the rooms of docs/tour.md from the laws of the modules. `--check` only compares."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tour.md"
PACKAGES = ("bus", "master", "worker", "runner", "gateway", "telemetry", "conf")
MARK = "Made by `make docs` from the first sentence of every module.\n"


def law(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def rooms() -> str:
    parts: list[str] = []
    for package in PACKAGES:
        parts.append(f"\n### {package}/\n\n| module | its law |\n|---|---|\n")
        parts += [
            f"| `{path.relative_to(ROOT / package)}` | {law(path)} |\n"
            for path in sorted((ROOT / package).rglob("*.py"))
            if path.name != "__init__.py"
        ]
    return "".join(parts)


def main() -> int:
    before = PAGE.read_text()
    wanted = before[: before.index(MARK) + len(MARK)] + rooms()
    if "--check" in sys.argv[1:]:
        if before != wanted:
            sys.stderr.write("docs/tour.md is out of date: run `make docs` and commit it\n")
        return int(before != wanted)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
