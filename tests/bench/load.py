"""A light client for SSE completions: raw asyncio sockets, so that it costs all servers alike."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Timing:
    """One stream: when it began, when each piece of text came, how it ended; `tokens` as its usage
    told, else as they were asked for."""

    began: float
    at: list[float] = field(default_factory=list[float])
    ended: float = 0.0
    tokens: int = 0
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        return self.at[0] - self.began

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in zip(self.at, self.at[1:], strict=False)]


@dataclass(frozen=True)
class Job:
    """A prompt, how many tokens to make of it, and more fields of its request."""

    prompt: str
    max_tokens: int
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])


async def stream(port: int | Path, model: str, job: Job) -> Timing:
    """One streamed completion, from a port of this machine or a Unix socket."""
    body = json.dumps(
        {
            "model": model, "prompt": job.prompt, "max_tokens": job.max_tokens,
            "temperature": 0.0, "stream": True, **job.more,
        }
    ).encode()  # fmt: skip
    timing = Timing(time.perf_counter())
    if isinstance(port, Path):
        reader, writer = await asyncio.open_unix_connection(str(port))
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    try:
        await read_events(reader, timing)
    except (OSError, asyncio.IncompleteReadError) as error:
        timing.error = repr(error)
    finally:
        writer.close()
    timing.ended = time.perf_counter()
    timing.tokens = timing.tokens or job.max_tokens
    return timing


async def read_events(reader: asyncio.StreamReader, timing: Timing) -> None:
    status = await reader.readline()
    if b" 200 " not in status:
        timing.error = status.decode(errors="replace").strip()
        return
    while line := await reader.readline():
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            return
        data = json.loads(line[6:])
        if "error" in data:
            timing.error = str(data["error"])
            return
        if data.get("usage"):
            timing.tokens = data["usage"]["completion_tokens"]
        if data.get("choices") and data["choices"][0].get("text"):
            timing.at.append(time.perf_counter())


async def run(
    port: int | Path, model: str, jobs: Sequence[Job], *, stagger_s: float = 0.005
) -> list[Timing]:
    """All jobs at once, their connects staggered; jobs are the concurrency."""

    async def one(number: int, job: Job) -> Timing:
        await asyncio.sleep(number * stagger_s)
        return await stream(port, model, job)

    return list(await asyncio.gather(*(one(n, job) for n, job in enumerate(jobs))))


def percentile(values: Sequence[float], part: float) -> float:
    """The nearest-rank percentile; NaN of nothing."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def summary(timings: Sequence[Timing]) -> dict[str, Any]:
    """Tokens per wall second, TTFT and ITL percentiles in milliseconds, errors."""
    good = [t for t in timings if t.error is None and t.at]
    if not good:
        return {"errors": len(timings), "tok_s": 0.0}
    wall = max(t.ended for t in good) - min(t.began for t in good)
    first = [1000 * t.ttft_s for t in good]
    gaps = [1000 * gap for t in good for gap in t.gaps_s]
    row: dict[str, Any] = {
        "tok_s": sum(t.tokens for t in good) / wall,
        "errors": len(timings) - len(good),
    }
    for name, values in (("ttft_ms", first), ("itl_ms", gaps)):
        for label, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            row[f"{name}_{label}"] = percentile(values, part)
    return row


def median_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over repeats, and the spread of tokens per second."""
    keys = {key for row in rows for key in row if isinstance(row[key], int | float)}
    middle: dict[str, Any] = {
        key: statistics.median(row[key] for row in rows if key in row) for key in sorted(keys)
    }
    speeds = [row["tok_s"] for row in rows if "tok_s" in row]
    middle["tok_s_min"], middle["tok_s_max"] = min(speeds), max(speeds)
    return middle
