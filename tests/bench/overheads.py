"""What it costs to look: traces of requests, their export, and pages that are open.

A real node and its bundled model, asked for `--streams` streams at a time, again and again: without
traces, twice, so that it shows how much two equal runs differ; with `x_trace` on each; while a page
is open. Then a gateway and a synthetic runner flat out, where a token costs next to nothing and a
request's trace the most that it can: without, without again, traced, traced and exported to a
collector. Then the node idle with no page, one, and twenty. All take turns, each round another one
first; ratios are of the same round, and medians are told. Counted is the processor's time of the
processes themselves. Run:

    python -m tests.bench.overheads [--rounds N] [--idle-s S] [--json FILE]

A page is what the browser's does: it reads `/metrics/stream`, as each view has it, and `/events`,
as Watch has it besides. The aims: without traces nothing that shows, with them at most 1.02 times,
a page under 2 % of a core. Prints a table. It never fails for a figure.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from tests.bench.dialects_flat_out import Asked, Gateway, cost_of, dialects, processor_s
from tests.harness.collector import collecting
from tests.harness.gateway_testbed import eventually, gateway_testbed
from tests.harness.http_clients import ready
from tests.harness.nodes import MODEL, Node, running_node

AIM, PAGE_AIM = 1.02, 0.02
PAGES = (0, 1, 20)
WITHOUT, AGAIN, TRACED, EXPORTED, LOOKED = "off", "off again", "traced", "exported", "page open"
Costs = Mapping[str, float]


class Page:
    """What an open page reads, until it is left."""

    PATHS = ("/metrics/stream", "/events?stream=true")

    def __init__(self, port: int) -> None:
        self.bytes = 0
        self._connections = [self._opened(port, path) for path in self.PATHS]
        self._threads = [
            threading.Thread(target=self._read, args=(one,), daemon=True)
            for one in self._connections
        ]
        for one in self._threads:
            one.start()

    def leave(self) -> None:
        """Close the page."""
        for one in self._connections:
            one.shutdown(socket.SHUT_RDWR)
        for one in self._threads:
            one.join(10)
        for one in self._connections:
            one.close()

    def _opened(self, port: int, path: str) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port))
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"
        connection.sendall(head.encode())
        return connection

    def _read(self, connection: socket.socket) -> None:
        answer = connection.recv(1 << 16)
        assert b" 200 " in answer.partition(b"\r\n")[0], answer
        while piece := connection.recv(1 << 16):
            self.bytes += len(piece)


@contextmanager
def pages(port: int, count: int) -> Iterator[None]:
    """So many open pages, each of which has been told something."""
    opened = [Page(port) for _ in range(count)]
    try:
        eventually(lambda: all(one.bytes for one in opened), 30, "each page is told something")
        yield
    finally:
        for one in opened:
            one.leave()


def spent_s(pids: Sequence[int]) -> float:
    """Return the seconds that processes have been on processors so far."""
    return sum(processor_s(pid) for pid in pids)


def pids_of(node: Node) -> list[int]:
    """Return the processes of a node."""
    return [one.pid for one in node.all_processes()]


def of_node(node: Node, asked: Asked, streams: int, tokens: int) -> float:
    """Return the microseconds of the node for a token, of `streams` at once."""
    pids = pids_of(node)
    before_s = spent_s(pids)
    cost_of(Gateway(node.base_port, pids[0]), asked, streams, 1)
    return 1e6 * (spent_s(pids) - before_s) / (streams * tokens)


def traced(asked: Asked) -> Asked:
    """Return a question that asks for a trace, too."""
    return replace(asked, fields={**asked.fields, "x_trace": True})


def rounds_of(turns: Mapping[str, Callable[[], float]], rounds: int) -> list[Costs]:
    """Return what each turn cost in each round; the first round warms up and is left out."""
    found: list[Costs] = []
    names = list(turns)
    for number in range(rounds + 1):
        first = number % len(names)
        costs = {name: turns[name]() for name in names[first:] + names[:first]}
        found += [{name: costs[name] for name in names}] if number else []
    return found


def compared(rounds: Sequence[Costs]) -> dict[str, dict[str, float]]:
    """Return medians of each turn: its cost, its ratio to `WITHOUT` of the same round, and the
    quartiles of that."""
    told: dict[str, dict[str, float]] = {}
    for name in rounds[0]:
        ratios = [one[name] / one[WITHOUT] for one in rounds]
        low, middle, high = statistics.quantiles(ratios, n=4)
        told[name] = {
            "us_per_token": statistics.median(one[name] for one in rounds),
            "ratio": middle,
            "least": low,
            "most": high,
        }
    return told


def asked_of_node(
    streams: int, tokens: int, rounds: int, node: Node
) -> dict[str, dict[str, float]]:
    """Return what tokens of a real node cost, with and without what looks."""
    turns = [{"role": "user", "content": "Tell me a long story about a fish."}]
    event, last = b'"finish_reason":"length"', b"[DONE]"  # an event may have several tokens
    fields = {"messages": turns, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    plain = Asked("/v1/chat/completions", fields, event, last)

    def looked() -> float:
        """Ask while a page is open."""
        with pages(node.base_port, 1):
            return of_node(node, plain, streams, tokens)

    return compared(
        rounds_of(
            {
                WITHOUT: lambda: of_node(node, plain, streams, tokens),
                AGAIN: lambda: of_node(node, plain, streams, tokens),
                TRACED: lambda: of_node(node, traced(plain), streams, tokens),
                LOOKED: looked,
            },
            rounds,
        )
    )


def flat_out(streams: int, tokens: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return what tokens cost a gateway that passes them on as fast as it can."""
    plain = dialects(f"tokens={tokens}")["chat"]
    with ExitStack() as stack:
        collector = stack.enter_context(collecting())

        def gateway(**options: Any) -> Gateway:
            """Start a gateway and a synthetic runner."""
            made = stack.enter_context(gateway_testbed(processes=1, **options))
            made.runner()
            eventually(lambda: ready(made), 30, "the instance is ready")
            return Gateway(made.port, psutil.Process(made.gateway.pid).children()[0].pid)

        alone, exporting = gateway(), gateway(otlp_endpoint=collector.url)

        def cost(of: Gateway, asked: Asked) -> float:
            """Return the microseconds of the HTTP process for a token."""
            return statistics.fmean(cost_of(of, asked, streams, tokens).cpu_us for _ in range(4))

        return compared(
            rounds_of(
                {
                    WITHOUT: lambda: cost(alone, plain),
                    AGAIN: lambda: cost(alone, plain),
                    TRACED: lambda: cost(alone, traced(plain)),
                    EXPORTED: lambda: cost(exporting, traced(plain)),
                },
                rounds,
            )
        )


def idle_with_pages(node: Node, seconds: float, rounds: int) -> dict[str, float]:
    """Return the share of a core that an idle node takes with so many pages open, medians."""

    def share(count: int) -> float:
        """Return the share while so many are open."""
        with pages(node.base_port, count):
            pids = pids_of(node)
            before_s, began_at = spent_s(pids), time.monotonic()
            time.sleep(seconds)
            return (spent_s(pids) - before_s) / (time.monotonic() - began_at)

    found = rounds_of({str(count): (lambda n=count: share(n)) for count in PAGES}, rounds)
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


def show(what: str, told: Mapping[str, Costs]) -> None:
    """Print a table of ratios."""
    print(f"{what:<34} {'us a token':>11} {'x off':>7}   quartiles")
    for name, one in told.items():
        aim = f"  at most {AIM}: {'met' if one['ratio'] <= AIM else 'MISSED'}"
        print(
            f"  {name:<32} {one['us_per_token']:>11.2f} {one['ratio']:>7.3f}   "
            f"{one['least']:.3f} {one['most']:.3f}{'' if name in (WITHOUT, AGAIN) else aim}"
        )


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--streams", type=int, default=8)
    arguments.add_argument("--tokens", type=int, default=200, help="tokens of one stream")
    arguments.add_argument("--rounds", type=int, default=12)
    arguments.add_argument("--idle-s", type=float, default=10.0)
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    with running_node(SHOAL_HTTP_PROCESSES="1") as node:
        eventually(node.ready, 60, f"{MODEL} answers")
        real = asked_of_node(given.streams, given.tokens, given.rounds, node)
        idle = idle_with_pages(node, given.idle_s, max(2, given.rounds // 3))
    flat = flat_out(32, 1000, given.rounds)
    show(f"a node, {given.streams} streams of {given.tokens}", real)
    show("a gateway flat out, 32 of 1,000", flat)
    for count, share in idle.items():
        print(f"an idle node, {count:>2} pages open: {100 * share:.2f} % of a core")
    one = idle["1"] - idle["0"]
    each = (idle["20"] - idle["0"]) / 20
    said = "met" if one <= PAGE_AIM else "MISSED"
    print(f"a page: {100 * one:.2f} % (at most 2: {said}); of twenty each {100 * each:.2f} %")
    if given.json:
        given.json.parent.mkdir(exist_ok=True)
        told = {"node": real, "flat_out": flat, "idle": idle}
        given.json.write_text(json.dumps(told, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
