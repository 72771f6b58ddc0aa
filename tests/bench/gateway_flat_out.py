"""The gateway alone, flat out: SSE tokens per second through one HTTP process.

A real gateway, a real ROUTER with text made on the spot (batched StepEntries, credit kept), a raw
reader that counts frames. Run: `python -m tests.bench.gateway_flat_out [streams] [rounds]`.
With `--tls` all of it goes over HTTPS. Prints one table and, with `--json FILE`, writes it. It
never fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import selectors
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.harness.certificates import TlsPairOnDisk
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed

TOKEN = b'"delta":{"content":'


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--streams", type=int, nargs="*", default=[1, 32, 128])
    arguments.add_argument("--tokens", type=int, default=320_000, help="tokens of one round")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--tls", action="store_true", help="over HTTPS")
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, _gateway(folder, given.tls) as made:
        made.runner()
        eventually(lambda: _models_ready(made), 10, "the instance is ready")
        for streams in given.streams:
            rounds = [one_round(made, streams, given.tokens) for _ in range(given.rounds)]
            rows.append(_row(streams, rounds))
    print(
        f"{'streams':>8} {'tokens/s median':>16} {'min':>9} {'max':>9} {'gateway CPU us/token':>21}"
    )
    for row in rows:
        print(
            f"{row['streams']:>8} {row['tokens_per_s']:>16,.0f} {row['least']:>9,.0f} "
            f"{row['most']:>9,.0f} {row['cpu_us_per_token']:>21.2f}"
        )
    if given.json:
        given.json.parent.mkdir(exist_ok=True)
        given.json.write_text(json.dumps(rows, indent=2))
    return 0


def _models_ready(made: GatewayTestbed) -> bool:
    import httpx

    return MODEL in httpx.get(f"{made.url}/health", verify=made.trust).json()["models_ready"]


@contextlib.contextmanager
def _gateway(folder: str, tls: bool) -> Iterator[GatewayTestbed]:
    if not tls:
        with gateway_testbed(processes=1) as made:
            yield made
        return
    pair = TlsPairOnDisk(Path(folder))
    with gateway_testbed(processes=1, tls=[str(pair.certificate), str(pair.key)]) as made:
        made.trust = pair.trust()
        yield made


def _connection(made: GatewayTestbed) -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", made.port))
    if not isinstance(made.trust, ssl.SSLContext):
        return plain
    return made.trust.wrap_socket(plain, server_hostname="127.0.0.1")


def _received(connection: Any) -> bytes:
    """Return what has come, with all that TLS has unpacked already."""
    data = connection.recv(1 << 18)
    while isinstance(connection, ssl.SSLSocket) and connection.pending():
        data += connection.recv(1 << 18)
    return data


def _row(streams: int, rounds: list[tuple[float, float]]) -> dict[str, Any]:
    speeds = [speed for speed, _ in rounds]
    return {
        "streams": streams,
        "tokens_per_s": statistics.median(speeds),
        "least": min(speeds),
        "most": max(speeds),
        "cpu_us_per_token": min(cpu for _, cpu in rounds),
    }


def one_round(made: GatewayTestbed, streams: int, tokens: int) -> tuple[float, float]:
    """(tokens per second, CPU microseconds of the HTTP process per token)."""
    each = tokens // streams
    body = json.dumps(
        {
            "model": MODEL,
            "stream": True,
            "messages": [{"role": "user", "content": f"tokens={each}"}],
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()
    worker = psutil.Process(made.gateway.pid).children()[0]
    before = sum(worker.cpu_times()[:2])
    selector = selectors.DefaultSelector()
    started = time.perf_counter()
    for _ in range(streams):
        connection = _connection(made)
        connection.sendall(head + body)
        selector.register(connection, selectors.EVENT_READ, [b"", 0])
    counted = 0
    while selector.get_map():
        for key, _ in selector.select(30):
            rest, seen = key.data
            piece = _received(key.fileobj)
            data = rest + piece
            found = data.count(TOKEN)
            counted += found
            key.data[0] = data[-(len(TOKEN) - 1) :]
            key.data[1] = seen + found
            if not piece or b"data: [DONE]" in data:
                selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]
    seconds = time.perf_counter() - started
    cpu_s = sum(worker.cpu_times()[:2]) - before
    if counted < each * streams * 0.999:
        print(f"only {counted} of {each * streams} tokens came", file=sys.stderr)
    return counted / seconds, 1e6 * cpu_s / max(1, counted)


if __name__ == "__main__":
    sys.exit(main())
