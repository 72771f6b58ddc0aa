"""Talks to the disk: makes the recordings beside it anew. Recorded on commit 964311d.

Run by hand only, as `python -m tests.recorded.record` in the root of the repository, and only
where a name, a number of the wire or a file's form is *meant* to change: from then on the new ones
are what `tests/test_recorded.py` holds the code to. What it writes does not depend on the clock, on
chance, or on the machine; variables that begin with `SHOAL_` must not be set.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from base64 import b64encode
from pathlib import Path
from typing import Any

from tests.recorded.disk import (
    derived_secrets,
    known_hashes,
    made_manifest,
    make_home,
    make_journal,
    make_small_files,
    make_stage,
    told_flags,
    told_state,
)
from tests.recorded.names import TABLES
from tests.recorded.wire import Recorded, calls, entry_tags, frames, kinds

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data"


def text_of(value: Any) -> str:
    """Write JSON data as it is kept: a line for each value, so that changes can be read."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def as_text(recorded: Recorded) -> dict[str, list[str]]:
    """Write bytes as text, by tag."""
    return {tag: [b64encode(one).decode() for one in them] for tag, them in recorded.items()}


def pages(folder: Path) -> dict[str, Any]:
    """Ask a gateway that knows what is recorded for its pages, in a process of its own: the
    metrics' library looks for its folder when it is imported."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.recorded.pages"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


def record_wire() -> None:
    """Record what crosses wires."""
    (DATA / "kinds.json").write_text(text_of(as_text(kinds())))
    called = {part: as_text(packed) for part, packed in calls().items()}
    (DATA / "calls.json").write_text(text_of(called))
    spoken = {direction: as_text(tagged) for direction, tagged in frames().items()}
    (DATA / "frames.json").write_text(text_of({**spoken, "entries": entry_tags()}))


def record_disk(scratch: Path) -> None:
    """Record what lies on disks."""
    state = make_journal(DATA / "journal")
    (DATA / "state.json").write_text(text_of(told_state(state)))
    (DATA / "small").mkdir()
    make_small_files(DATA / "small")
    make_home(scratch / "home")
    shutil.copy(scratch / "home" / "state" / "up.json", DATA / "small" / "up.json")
    make_stage(DATA / "models", made_manifest(scratch / "made"))
    noted = {
        "secrets": derived_secrets(),
        "flags": told_flags(scratch / "home"),
        "hashes": known_hashes(scratch / "known"),
    }
    (DATA / "noted.json").write_text(text_of(noted))


def record_names(scratch: Path) -> None:
    """Record the tables of names, and the pages of a gateway."""
    (DATA / "names").mkdir()
    for name, table in TABLES.items():
        (DATA / "names" / f"{name}.json").write_text(text_of(table()))
    (scratch / "metrics").mkdir()
    (DATA / "pages.json").write_text(text_of(pages(scratch / "metrics")))


def main() -> int:
    """Record everything."""
    if any(name.startswith("SHOAL_") for name in os.environ):
        sys.stderr.write("unset every SHOAL_ variable first\n")
        return 1
    shutil.rmtree(DATA, ignore_errors=True)
    DATA.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        record_wire()
        record_disk(Path(scratch))
        record_names(Path(scratch))
    return 0


if __name__ == "__main__":
    sys.exit(main())
