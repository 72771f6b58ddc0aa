"""Writes rows into a records file until it is killed, and says which are committed.

A process of its own (`python -m tests.harness.records_writer FILE NAME DURABLE`): a line on
standard output for each row, once its write has returned.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from bus.process.logs import Log
from gateway.records import LogBounds, RecordsFile, RequestRow
from gateway.records.request_log import inserted, pruned


def row(name: str, *, ended_at_s: float = 1.0, **more: object) -> RequestRow:
    """A row of little."""
    fields = {"kind": "generate", "dialect": "d", "seconds": 1.0, "status": 200, **more}
    return RequestRow(request=name, ended_at_s=ended_at_s, **fields)  # type: ignore[arg-type]


def main() -> None:
    path, name, durable = sys.argv[1:4]
    file = RecordsFile(Path(path), Log(node="n1", process=name))
    removals = pruned(LogBounds(rows=10**6, bytes=1 << 30, age_s=1e12), 1.0)
    for count in itertools.count():
        file.write([inserted(row(f"{name}-{count}")), *removals], durable=durable == "durable")
        print(f"{name}-{count}", flush=True)


if __name__ == "__main__":
    main()
