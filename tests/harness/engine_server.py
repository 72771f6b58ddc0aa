"""A program for `engines.toml`: a server that speaks as vLLM does, and that can go wrong.

    python engine_server.py --port 8000 --model NAME [--fault FAULT] [--seen FILE] [--key KEY]

Its answer to a conversation is `<thinking>` if thinking was asked for, then the numbers from 1 on,
a word per token. With tools it calls the first one, with a format it answers an object. FAULT:
`exits`, `hangs` (its health is never good), `html` (a page at every path), `no-stream`, `dumb`
(accepts and never answers), `cut` (the stream ends early), `nonsense` (events that are no JSON),
`dies` (within an answer), `refuses`, `greedy` (takes memory), `other-port`. A fault begins with the
second request if `--later` is given, so that the program becomes ready.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAUSE_S = 0.005
HELD: list[bytearray] = []


class EngineServer(ThreadingHTTPServer):
    """What was asked is written to a file, a line each."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(("127.0.0.1", options.port), _Answers)
        self.options = options
        self.asked = 0
        self.at_once = 0
        self.lock = threading.Lock()

    def note(self, fields: dict[str, Any]) -> None:
        if self.options.seen:
            with self.lock, open(self.options.seen, "a") as file:
                file.write(json.dumps(fields) + "\n")

    @property
    def fault(self) -> str:
        is_later = self.options.later and self.asked <= 1
        return "" if is_later else self.options.fault


class _Answers(BaseHTTPRequestHandler):
    server: EngineServer  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.server.options.fault == "html":
            self._whole(200, b"<!doctype html><title>hello</title>", "text/html")
        elif self.server.options.fault == "hangs" or self.path != "/health":
            self._whole(503, b"loading")
        else:
            self._whole(200, b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server, self.close_connection = self.server, True
        with server.lock:
            server.asked += 1
            server.at_once += 1
            self.is_open = 1
        server.note({"path": self.path, "body": body, "at_once": server.at_once})
        try:
            self._answer(body)
        except (BrokenPipeError, ConnectionResetError):
            server.note({"hung_up": self.path})
        finally:
            self._over()

    def _answer(self, body: dict[str, Any]) -> None:
        options, fault = self.server.options, self.server.fault
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if options.key and given != options.key:
            self._refuse(401, "the key is wrong")
        elif body.get("model") != options.model:
            self._refuse(404, f"The model `{body.get('model')}` does not exist.")
        elif fault == "refuses":
            self._refuse(400, "temperature: too hot")
        elif fault == "html":
            self._whole(200, b"<!doctype html><title>hello</title>", "text/html")
        elif fault == "no-stream":
            self._whole(200, json.dumps({"choices": []}).encode(), "application/json")
        elif fault == "dumb":
            time.sleep(3600)
        else:
            self._stream(body, fault)

    def _stream(self, body: dict[str, Any], fault: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        if self.path == "/v1/completions":
            pieces = [{"text": f" {number}"} for number in range(1, 4)]
            for piece in pieces:
                self._event({"choices": [{"index": 0, **piece, "finish_reason": None}]})
            self._event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
            self._end(len(pieces))
            return
        most = body.get("max_tokens", 10_000)
        count = 0
        for number in range(body.get("n", 1)):
            parts, reason = _parts(body, most)
            for delta in parts:
                count += 1
                chosen: dict[str, Any] = {"index": number, "delta": delta, "finish_reason": None}
                if body.get("logprobs"):
                    top = [{"token": "x", "logprob": -2.0, "bytes": [120]}]
                    token = {"token": delta.get("content", ""), "logprob": -0.5, "bytes": None}
                    chosen["logprobs"] = {"content": [token | {"top_logprobs": top}]}
                self._event({"choices": [chosen]})
                if count < (3 if self.server.options.later else 1):
                    continue
                if fault == "dies":
                    os._exit(3)
                if fault == "cut":
                    return
                if fault == "nonsense":
                    self.wfile.write(b"data: {not json\n\n")
                    return
                time.sleep(PAUSE_S)
            end: dict[str, Any] = {"index": number, "delta": {}, "finish_reason": reason}
            self._event({"choices": [end]})
        self._end(count)

    def _over(self) -> None:
        """Count this request as over, once."""
        with self.server.lock:
            self.server.at_once -= self.is_open
            self.is_open = 0

    def _end(self, count: int) -> None:
        self._over()
        usage = {"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count}
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, value: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def _refuse(self, status: int, words: str) -> None:
        self._whole(status, json.dumps({"error": {"message": words, "code": status}}).encode())

    def _whole(self, status: int, data: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _parts(body: dict[str, Any], most: int) -> tuple[list[dict[str, Any]], str]:
    """Return the deltas of one choice, and why it ends."""
    if body.get("tools") and body.get("tool_choice") != "none":
        function = {"name": body["tools"][0]["function"]["name"], "arguments": ""}
        call = {"index": 0, "id": "call_1", "type": "function", "function": function}
        arguments = ('{"city": ', '"Oslo"}')
        more = [
            {"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in arguments
        ]
        return [{"role": "assistant", "content": None}, {"tool_calls": [call]}, *more], "tool_calls"
    wanted: dict[str, Any] = body.get("response_format") or {}
    if wanted.get("type", "text") != "text":
        return [{"content": part} for part in ('{"name": ', '"shoal"}')], "stop"
    words = [{"content": f"{number} "} for number in range(1, 1 + min(most, 2_000))]
    variables: dict[str, Any] = body.get("chat_template_kwargs") or {}
    if variables.get("enable_thinking"):
        words = [{"reasoning_content": "hmm "}, *words]
    return words, "length" if len(words) >= most else "stop"


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("model", "fault", "seen", "key"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--later", action="store_true")
    options = parser.parse_args()
    if options.fault == "exits":
        print("error: cannot find the weights", file=sys.stderr)
        return 4
    if options.fault == "greedy" and not options.later:
        HELD.append(bytearray(os.urandom(1 << 20) * 400))
    if options.fault == "other-port":
        options.port = 0
    EngineServer(options).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
