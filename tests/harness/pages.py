"""Make the generated files of docs/ from the code, or check that they are up to date.

    python -m tests.harness.pages [--check]

One process for all pages: they share their imports.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.harness import (
    access_page,
    families_page,
    fields_page,
    limits_page,
    protocol_page,
    reference_page,
    settings_schema,
    tour_page,
)

ROOT = Path(__file__).resolve().parents[2]
PAGES: dict[Path, Callable[[], str]] = {
    module.PAGE: module.page
    for module in (
        access_page, families_page, fields_page, limits_page, protocol_page, reference_page,
        tour_page,
    )
} | {
    settings_schema.SCHEMA: settings_schema.schema,
    settings_schema.EXAMPLE: settings_schema.example,
}  # fmt: skip


def outdated(pages: dict[Path, Callable[[], str]]) -> Iterator[Path]:
    """Yield each file whose text is not what its function makes now."""
    for path, make in pages.items():
        if not path.exists() or path.read_text() != make():
            yield path


def main() -> int:
    """Write the pages; with `--check` only name those that are out of date, and return 1."""
    parser = argparse.ArgumentParser(description="Make the generated pages of docs/.")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if not parser.parse_args().check:
        for path, make in PAGES.items():
            path.write_text(make())
        return 0
    old = list(outdated(PAGES))
    for path in old:
        name = path.relative_to(ROOT)
        sys.stderr.write(f"{name} is out of date: run `make docs` and commit it\n")
    return int(bool(old))


if __name__ == "__main__":
    sys.exit(main())
