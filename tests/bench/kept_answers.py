"""What kept answers take where the records are as large as they may be: to find one, to keep one.

Fills a file with `--rows` answers in conversations of eight, of `--bytes` each turn, then asks for
random ones and keeps further ones, one at a time and 32 at once, each of which removes the oldest.
Run:

    python -m tests.bench.kept_answers [--rows N] [--bytes N] [--count N] [--json FILE]

Prints milliseconds, median and 99th percentile, and what lies on the disk. It never fails for one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from bus.process.logs import Log
from bus.wire.ids import RequestId
from gateway.dialects.dialect import KeptAnswer
from gateway.records import AnswerBounds, LogBounds, NodeRecords, RecordsFile, kept_answers

TURNS = 8
LOG = Log(node="n1", process="bench")


def answer(number: int, size: int) -> KeptAnswer:
    """Make an answer: the last of as many turns as its conversation has by then."""
    first = number - number % TURNS
    items = tuple(b"%d " % (first + turn) + b"x" * size for turn in range(number % TURNS + 1))
    return KeptAnswer(b"%d " % number + b"y" * size, items, b"", b"{}")


def fill(path: Path, rows: int, size: int) -> None:
    """Fill a file."""
    file = RecordsFile(path, LOG)
    for start in range(0, rows, 500):
        numbers = range(start, min(start + 500, rows))
        made = [kept_answers.added("", name(n), answer(n, size), time.time()) for n in numbers]
        file.write([one for statements in made for one in statements])
    file.close()


def name(number: int) -> RequestId:
    """Name an answer's request."""
    return RequestId(f"req-n1-h0-boot-{number:x}")


async def timed(count: int, together: int, act: Callable[[], Awaitable[object]]) -> list[float]:
    """Return the milliseconds of each of `count` acts, so many at once."""

    async def one() -> float:
        begun = time.perf_counter()
        await act()
        return (time.perf_counter() - begun) * 1e3

    found: list[float] = []
    for _ in range(count // together):
        found += await asyncio.gather(*(one() for _ in range(together)))
    return found


async def measure(path: Path, rows: int, size: int, count: int) -> dict[str, dict[str, float]]:
    """Return what finding and keeping take."""
    upkeep = partial(kept_answers.pruned, AnswerBounds(rows=rows, bytes=1 << 36, age_s=1e9))
    records = NodeRecords(path, LogBounds(rows=10, bytes=1 << 20, age_s=1e9), LOG, upkeep=upkeep)
    chance = random.Random(1)
    numbers = iter(range(rows, 1 << 40))

    async def find() -> None:
        wanted = kept_answers.find("", name(chance.randrange(rows // 2, rows)))
        found = await records.ask(lambda file: kept_answers.answer_in(file.read(wanted)))
        assert found is not None

    async def keep() -> None:
        number = next(numbers)
        kept, now_s = answer(number, size), time.time()
        await records.write_made(partial(kept_answers.added, "", name(number), kept, now_s))

    await find()  # opened, and looked through
    told = {
        "find one": await timed(count, 1, find),
        "find 32 at once": await timed(count, 32, find),
        "keep one": await timed(count, 1, keep),
        "keep 32 at once": await timed(count, 32, keep),
    }
    records.close()
    return {
        what: {"p50_ms": statistics.median(ms), "p99_ms": sorted(ms)[len(ms) * 99 // 100]}
        for what, ms in told.items()
    }


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=6000)
    parser.add_argument("--count", type=int, default=640)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        path = Path(folder) / "records.sqlite"
        fill(path, given.rows, given.bytes)
        found = asyncio.run(measure(path, given.rows, given.bytes, given.count))
        size_bytes = sum(one.stat().st_size for one in Path(folder).iterdir())
    for what, ms in found.items():
        sys.stdout.write(f"{what:18} p50 {ms['p50_ms']:8.2f} ms   p99 {ms['p99_ms']:8.2f} ms\n")
    sys.stdout.write(f"{given.rows} answers on {size_bytes / 1e6:.0f} MB\n")
    if given.json is not None:
        given.json.write_text(json.dumps({**found, "size_bytes": size_bytes}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
