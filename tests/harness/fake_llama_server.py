"""A program in place of llama-server, which misbehaves as a file says.

`program_in` writes a script that starts it. It serves `/health`, `/props`, `/tokenize` and
`/completion` on a Unix socket, as llama-server does. Before each answer it reads the name of a
fault from a file beside the script, so one process can show many faults:

- at the start: `exits`, `exits without a word`, `never listens`, `never ready`, `mute`, `too old`,
  `is killed`, `is killed later` (when it is asked for tokens);
- in an answer: a key of `STREAMS`, or `exits`, `aborts`, `stops reading`, `refuses`, `fails`.

Without a fault it sends as many words as it is asked for.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FAULT = "fault"
"""The name of the file with the fault, in the script's folder."""
BUILD = 10_434
TOKENS = 4
"""Tokens before a fault."""
WORDS = b"E ggml: error: the device is lost\n"


def program_in(folder: Path) -> Path:
    """Write the script of a fake llama-server without a fault into a new folder."""
    folder.mkdir(parents=True)
    script = folder / "llama-server"
    here = Path(__file__).resolve()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{here}" "{folder}" "$@"\n')
    script.chmod(0o755)
    set_fault(script, "")
    return script


def set_fault(script: Path, fault: str) -> None:
    """Make the program of this script misbehave from its next answer on."""
    (script.parent / FAULT).write_text(fault)


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def part(number: int, **fields: Any) -> bytes:
    """Return the event of a row's token of this number, from 1."""
    return event(content="x ", tokens_predicted=number, stop=False, **fields)


def last(number: int) -> bytes:
    """Return the event that ends a row of so many tokens."""
    return event(content="", tokens_predicted=number, stop=True, stop_type="limit", timings={})


STREAMS: dict[str, bytes] = {
    "garbage": b"data: {]\n\n",
    "not UTF-8": b'data: {"content": "\xff\xfe", "tokens_predicted": 5, "stop": false}\n\n',
    "a cut line": b'data: {"content": "x", "tok',
    "a stream without an end": b"",
    "an endless line": b'data: {"content": "' + b"x" * (3 << 20) + b'"}\n\n',
    "ten thousand brackets": b"data: " + b"[" * 100_000 + b"\n\n",
    "an infinite number": b'data: {"prompt_progress": {"processed": Infinity, "total": 9}}\n\n',
    "an error event": event(error={"message": "no room in the KV cache"}),
    "a count of 10^15": part(10**15),
    "more tokens than requested": b"".join(part(number) for number in range(5, 400)),
}
"""What follows the first tokens, by fault. The connection is closed after it."""


def whole(body: dict[str, Any], fault: str) -> bytes:
    """Return an answer in one piece, as rows in slices request it."""
    token = 10**9 if fault == "an unknown token" else 5
    logprob = "NaN" if fault == "an odd log-probability" else "-0.5"
    score = f'{{"id": {token}, "logprob": {logprob}, "top_logprobs": []}}'
    count = max(1, min(2, body["n_predict"]))
    scores, ids = ", ".join([score] * count), ", ".join([str(token)] * count)
    return (
        f'{{"content": "x", "tokens": [{ids}], "tokens_predicted": {count}, "stop": true, '
        f'"stop_type": "limit", "completion_probabilities": [{scores}]}}'
    ).encode()


class Answerer(BaseHTTPRequestHandler):
    """Answers one request, and closes the connection."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        fault = self.server.fault
        if fault == "mute":
            threading.Event().wait()
        if self.path == "/health":
            self._send(b"{}", 503 if fault == "never ready" else 200)
        else:
            build = 100 + 1_000 if fault == "too old" else BUILD
            self._send(json.dumps({"build_info": f"b{build}-fake"}).encode())

    def do_POST(self) -> None:
        fault = self.server.fault
        if fault == "stops reading":
            threading.Event().wait()
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            if fault == "is killed later":
                os.kill(os.getpid(), signal.SIGKILL)
            self._send(b'{"tokens": []}')
        elif fault in ("refuses", "fails"):
            self._send(b'{"error": "no"}', 400 if fault == "refuses" else 500)
        elif not body["stream"]:
            self._send(whole(body, fault))
        else:
            self._begin(200)
            for data in self._parts(fault, body["n_predict"]):
                self.wfile.write(data)

    def _parts(self, fault: str, count: int) -> Iterator[bytes]:
        for number in range(1, min(count, TOKENS if fault else count) + 1):
            yield part(number)
        if not fault:
            yield last(count)
            return
        ENDS.get(fault, lambda: None)()
        yield STREAMS[fault]

    def _begin(self, status: int) -> None:
        self.wfile.write(b"HTTP/1.1 %d Said\r\nConnection: close\r\n\r\n" % status)

    def _send(self, data: bytes, status: int = 200) -> None:
        self._begin(status)
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: the client has no address."""


class Server(ThreadingMixIn, UnixStreamServer):
    """The server of one model. `fault` is that of the file."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, socket: str, folder: Path) -> None:
        self._folder = folder
        super().__init__(socket, Answerer)

    @property
    def fault(self) -> str:
        return (self._folder / FAULT).read_text()


def exit_now(words: bytes = WORDS) -> None:
    os.write(2, words)
    os._exit(3)


ENDS: dict[str, Callable[[], object]] = {"exits": exit_now, "aborts": os.abort}


def main(folder: Path, options: list[str]) -> None:
    fault = (folder / FAULT).read_text()
    if fault.startswith("exits"):
        exit_now(WORDS if fault == "exits" else b"")
    if fault == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "never listens":
        threading.Event().wait()
    Server(options[options.index("--host") + 1], folder).serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
