"""What the request log costs a gateway: its processor with and without, and asking a full log.

Two gateways, one that logs and one that does not, take turns, each round the other one first:
`--streams` chats at once, again and again, so that a round ends many of them. Counted is the HTTP
process's own time on processors, of all its threads; ratios are of the same round, and medians are
told. Then a log of as many rows as it may have by default is asked. Run:

    python -m tests.bench.request_log [--tokens N] [--rounds N] [--json FILE]

The aim: at most 1.02 times what it is without. Prints the figures and the aim. It never fails for
one.
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
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from bus.process.logs import Log
from gateway.records import LogBounds, NodeRecords, RecentQuery, RecordsFile
from gateway.records.request_log import inserted
from tests.bench.dialects_flat_out import Gateway, dialects, us_a_token
from tests.harness.gateway_testbed import eventually, gateway_testbed
from tests.harness.http_clients import ready
from tests.harness.records_writer import row

AIM = 1.02
ROWS = 100_000
"""`records.request_rows` by default."""


def gateway_of(stack: ExitStack, **options: Any) -> Gateway:
    """Start a gateway and a synthetic runner; both end with the stack."""
    made = stack.enter_context(gateway_testbed(processes=1, **options))
    made.runner()
    eventually(lambda: ready(made), 30, "the instance is ready")
    return Gateway(made.port, psutil.Process(made.gateway.pid).children()[0].pid)


def rounds_of(streams: int, tokens: int, again: int, rounds: int) -> list[dict[str, float]]:
    """Return the microseconds a token of each round, with the log and without."""
    asked = dialects(f"tokens={tokens}")["chat"]
    found: list[dict[str, float]] = []
    with ExitStack() as stack:
        turns = {"on": gateway_of(stack), "off": gateway_of(stack, request_rows=0)}
        for number in range(rounds + 1):
            order = ["on", "off"] if number % 2 else ["off", "on"]
            costs = {
                name: statistics.fmean(
                    us_a_token(turns[name], asked, streams, tokens) for _ in range(again)
                )
                for name in order
            }
            # the first round warms up
            found += [costs] if number else []
    return found


def compared(rounds: Sequence[Mapping[str, float]], tokens: int) -> dict[str, float]:
    """Return the medians: a token with the log and without, their ratio, and what a request's row
    takes."""
    return {
        "on_us_per_token": statistics.median(one["on"] for one in rounds),
        "off_us_per_token": statistics.median(one["off"] for one in rounds),
        "ratio": statistics.median(one["on"] / one["off"] for one in rounds),
        "us_per_row": statistics.median((one["on"] - one["off"]) * tokens for one in rounds),
    }


def full_log(path: Path, rows: int) -> None:
    """Fill a log with requests of an hour."""
    chance = random.Random(1)
    file = RecordsFile(path, Log(node="n1", process="bench"))
    now_s = time.time()
    for start in range(0, rows, 1000):
        file.write(
            [
                inserted(
                    row(
                        f"req-n1-h0-boot-{number:x}",
                        ended_at_s=now_s - 3600 * (1 - number / rows),
                        model=f"model-{chance.randrange(8)}",
                        client=f"client-{chance.randrange(300)}",
                        ttft_s=chance.random(),
                        queue_s=chance.random(),
                        load_s=0.0,
                        decode_s=1 + chance.random(),
                        completion_tokens=chance.randrange(1000),
                        error="queue_full" if chance.random() < 0.1 else None,
                    )
                )
                for number in range(start, min(start + 1000, rows))
            ]
        )
    file.close()


async def questions(path: Path, count: int) -> dict[str, dict[str, float]]:
    """Return the milliseconds that questions to a log took, median and 99th percentile; and of the
    event loop, the longest that it stood still meanwhile."""
    bounds = LogBounds(rows=10**6, bytes=1 << 30, age_s=1e9)
    records = NodeRecords(path, bounds, Log(node="n1", process="bench"))
    asked: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "recent": lambda: records.recent(RecentQuery()),
        "recent of a client": lambda: records.recent(RecentQuery(client="client-7")),
        "recent of nobody": lambda: records.recent(RecentQuery(client="nobody")),
        "stats of an hour": lambda: records.stats(3700.0),
    }
    stalls: list[float] = []
    watcher = asyncio.ensure_future(_watched(stalls))
    found: dict[str, dict[str, float]] = {}
    await records.recent(RecentQuery())  # opened, and looked through
    for name, ask in asked.items():
        stalls.clear()
        took: list[float] = []
        for _ in range(count if "stats" not in name else max(3, count // 20)):
            began = time.perf_counter()
            await ask()
            took.append(1000 * (time.perf_counter() - began))
        took.sort()
        found[name] = {
            "p50_ms": statistics.median(took),
            "p99_ms": took[min(len(took) - 1, round(len(took) * 0.99))],
            "loop_ms": 1000 * max(stalls, default=0.0),
        }
    watcher.cancel()
    records.close()
    return found


async def _watched(stalls: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        stalls.append(time.perf_counter() - began - 0.001)


def show(streams: int, tokens: int, costs: Mapping[str, float]) -> None:
    """Print what the log costs, and the aim."""
    met = "met" if costs["ratio"] <= AIM else "MISSED"
    print(
        f"{streams} streams of {tokens} tokens: {costs['on_us_per_token']:.2f} us a token with the "
        f"log, {costs['off_us_per_token']:.2f} without: {costs['ratio']:.3f} x (at most {AIM}: "
        f"{met}); {costs['us_per_row']:.0f} us a row"
    )


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--streams", type=int, default=32)
    arguments.add_argument("--tokens", type=int, default=1000, help="tokens of one stream")
    arguments.add_argument("--again", type=int, default=4, help="times the streams, a round")
    arguments.add_argument("--rounds", type=int, default=8)
    arguments.add_argument("--rows", type=int, default=ROWS, help="rows of the log that is asked")
    arguments.add_argument("--questions", type=int, default=200)
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    rounds = rounds_of(given.streams, given.tokens, given.again, given.rounds)
    costs = compared(rounds, given.tokens)
    with tempfile.TemporaryDirectory(prefix="shoal-log-") as folder:
        path = Path(folder) / "records.sqlite"
        full_log(path, given.rows)
        asked = asyncio.run(questions(path, given.questions))
    show(given.streams, given.tokens, costs)
    for name, took in asked.items():
        print(
            f"{given.rows:,} rows, {name}: p50 {took['p50_ms']:.1f} ms, "
            f"p99 {took['p99_ms']:.1f} ms; the loop stood still {took['loop_ms']:.1f} ms at most"
        )
    if given.json:
        given.json.parent.mkdir(exist_ok=True)
        given.json.write_text(json.dumps({"costs": costs, "questions": asked}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
