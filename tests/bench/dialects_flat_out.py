"""What each dialect costs the gateway: microseconds of its processor for a token.

Real HTTP, gateway and data plane; a synthetic runner in a process of its own that sends one entry
for each token, which becomes one event. The load comes from this process and costs the gateway
nothing: only the one HTTP process's own time on processors is counted, so that what else the
machine does shows little. Contestants take turns, each round another one first; ratios are of the
same round, and medians are told. Run:

    python -m tests.bench.dialects_flat_out [--tokens N] [--rounds N] [--json FILE]

`--before` names an older commit, whose chat completions take part: its gateway and its runner are
from its own tree.
The aims: chat completions at most 1.1 times what they were then, the other dialects at most twice
chat completions. Prints a table and the aims. It never fails for a figure.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.harness.nodes import ROOT
from tests.harness.other_trees import tree_of

MODEL = "shoal-tiny"
BEFORE = "964311d"
AT_MOST_BEFORE, AT_MOST_CHAT = 1.1, 2.0
TESTBEDS = ("gateway_testbed", "stage")
"""What the testbed of a gateway is called, today and in older trees."""
SERVER = """
import json, sys
import httpx, psutil
from tests.harness.{name} import MODEL, eventually, {name} as testbed
with testbed(processes=1) as made:
    made.runner()
    ready = lambda: MODEL in httpx.get(f"{{made.url}}/health").json()["models_ready"]
    eventually(ready, 60, "the instance is ready")
    worker = psutil.Process(made.gateway.pid).children()[0]
    print(json.dumps({{"port": made.port, "pid": worker.pid}}), flush=True)
    sys.stdin.read()
"""
"""Serves until its input ends; tells first where, and which process to measure."""


@dataclass(frozen=True)
class Asked:
    """How a dialect is asked for a stream; what every token's event holds once, and the last."""

    path: str
    fields: Mapping[str, Any]
    event: bytes
    last: bytes


def _turns(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def dialects(orders: str) -> dict[str, Asked]:
    """Return every dialect that streams, with the runner's orders in its prompt."""
    turns = _turns(orders)
    return {
        "chat": Asked("/v1/chat/completions", {"messages": turns}, b'"content":', b"[DONE]"),
        "completions": Asked(
            "/v1/completions",
            {"prompt": orders, "max_tokens": 10**9},
            b'"finish_reason":null',
            b"[DONE]",
        ),
        "responses": Asked(
            "/v1/responses",
            {"input": orders, "store": False},
            b'"response.output_text.delta"',
            b'"response.completed"',
        ),
        "messages": Asked(
            "/v1/messages",
            {"messages": turns, "max_tokens": 10**9},
            b'"text_delta"',
            b'"message_stop"',
        ),
        "ollama chat": Asked("/api/chat", {"messages": turns}, b'"done":false', b'"done":true'),
        "ollama generate": Asked(
            "/api/generate", {"prompt": orders}, b'"done":false', b'"done":true'
        ),
    }


@dataclass(frozen=True)
class Gateway:
    """A gateway that serves: its port, and its HTTP process."""

    port: int
    pid: int


@contextmanager
def gateway_of(tree: Path, under: Sequence[str] = ()) -> Generator[Gateway]:
    """Start a gateway and a runner of a tree, with the words `under` before the command; both are
    gone afterwards."""
    name = next(one for one in TESTBEDS if (tree / f"tests/harness/{one}.py").exists())
    process = subprocess.Popen(
        [*under, sys.executable, "-P", "-c", SERVER.format(name=name)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield Gateway(**json.loads(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.wait(600 if under else 60)
        process.stdout.close()


def processor_s(pid: int) -> float:
    """Return the seconds that all threads of a process were on a processor."""
    tasks = Path(f"/proc/{pid}/task")
    if not tasks.exists():
        return sum(psutil.Process(pid).cpu_times()[:2])
    files = (task / "schedstat" for task in tasks.iterdir())
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


@dataclass(frozen=True)
class Cost:
    """What streams took, for one token, in microseconds: of the HTTP process's processor, and of
    the clock."""

    cpu_us: float
    wall_us: float


def us_a_token(gateway: Gateway, asked: Asked, streams: int, tokens: int) -> float:
    """Return the microseconds of the HTTP process for a token, of `streams` at once."""
    return cost_of(gateway, asked, streams, tokens).cpu_us


def cost_of(gateway: Gateway, asked: Asked, streams: int, tokens: int) -> Cost:
    """Return what a token takes, of `streams` at once."""
    fields = {"model": MODEL, "stream": True, **asked.fields}
    body = json.dumps(fields).encode()
    head = (
        f"POST {asked.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    before_s, began_s = processor_s(gateway.pid), time.perf_counter()
    counted = _read(gateway.port, head + body, asked, streams)
    took_s, spent_s = time.perf_counter() - began_s, processor_s(gateway.pid) - before_s
    if counted != streams * tokens:
        raise RuntimeError(f"{asked.path}: {counted} events of {streams * tokens} tokens")
    return Cost(1e6 * spent_s / counted, 1e6 * took_s / counted)


def _read(port: int, sent: bytes, asked: Asked, streams: int) -> int:
    """Ask so often at once; return how many events came until the last of each stream."""
    selector = selectors.DefaultSelector()
    for _ in range(streams):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(sent)
        selector.register(connection, selectors.EVENT_READ, b"")
    counted, kept = 0, max(len(asked.event), len(asked.last)) - 1
    while selector.get_map():
        ready = selector.select(60)
        if not ready:
            raise TimeoutError(f"{asked.path}: nothing came for a minute")
        for key, _ in ready:
            connection: Any = key.fileobj
            piece = connection.recv(1 << 18)
            data = key.data + piece
            counted += data.count(asked.event) - key.data.count(asked.event)
            if piece and asked.last not in data:
                selector.modify(connection, selectors.EVENT_READ, data[-kept:])
                continue
            selector.unregister(connection)
            connection.close()
    return counted


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--streams", type=int, default=32)
    arguments.add_argument("--tokens", type=int, default=4_000, help="tokens of one stream")
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--before", default=BEFORE, help="a commit, or nothing for none")
    arguments.add_argument("--only", default="", help="dialects, by commas")
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    asked = dialects(f"tokens={given.tokens}")
    names = given.only.split(",") if given.only else list(asked)
    with tempfile.TemporaryDirectory(prefix="shoal-before-") as folder, ExitStack() as stack:
        now = stack.enter_context(gateway_of(ROOT))
        turns = {name: (now, asked[name]) for name in names}
        tree = tree_of(given.before, Path(folder), "tests") if given.before else None
        if tree is not None:
            before = stack.enter_context(gateway_of(tree))
            turns[f"chat of {given.before}"] = (before, asked["chat"])
        rounds: list[dict[str, float]] = []
        for number in range(given.rounds + 1):
            order = [*turns][number % len(turns) :] + [*turns][: number % len(turns)]
            costs = {name: us_a_token(*turns[name], given.streams, given.tokens) for name in order}
            # the first round warms up
            rounds += [{name: costs[name] for name in turns}] if number else []
    rows = rows_of(rounds)
    show(rows)
    if given.json:
        given.json.parent.mkdir(exist_ok=True)
        given.json.write_text(json.dumps(rows, indent=1))
    return 0


def rows_of(rounds: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return for each contestant its medians: the cost, and its ratio to the one it is held to."""
    rows: list[dict[str, Any]] = []
    before = next((name for name in rounds[0] if name.startswith("chat of ")), "")
    for name in rounds[0]:
        costs = [one[name] for one in rounds]
        against = before if name == "chat" else "chat"
        row: dict[str, Any] = {
            "dialect": name,
            "cpu_us_per_token": statistics.median(costs),
            "least": min(costs),
            "most": max(costs),
        }
        if against in rounds[0] and name != before:
            row["against"] = against
            row["ratio"] = statistics.median(one[name] / one[against] for one in rounds)
            row["aim"] = AT_MOST_BEFORE if name == "chat" else AT_MOST_CHAT
        rows.append(row)
    return rows


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the table."""
    print(f"{'dialect':<18} {'us/token':>9} {'least':>7} {'most':>7}   ratio")
    for row in rows:
        ratio = ""
        if "ratio" in row:
            met = "met" if row["ratio"] <= row["aim"] else "MISSED"
            ratio = f"{row['ratio']:.2f} x {row['against']} (at most {row['aim']:.1f}: {met})"
        print(
            f"{row['dialect']:<18} {row['cpu_us_per_token']:>9.2f} {row['least']:>7.2f} "
            f"{row['most']:>7.2f}   {ratio}"
        )


if __name__ == "__main__":
    sys.exit(main())
