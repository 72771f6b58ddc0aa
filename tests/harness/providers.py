"""A server of OpenAI's and of Anthropic's API whose answers are good, refused, slow or cut, by the
name of the model that is asked for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TEXT = ("Shoals ", "of ", "fish ", "move.")
REFUSALS: dict[str, tuple[int, dict[str, str], str]] = {
    "unknown-key": (401, {}, "the key {key} is not known"),
    "busy": (429, {"Retry-After": "17"}, "too many requests"),
    "broken": (500, {}, "it is on fire"),
    "overloaded": (529, {"Retry-After": "3"}, "overloaded"),
    "not-there": (404, {}, "no such model"),
    "picky": (400, {}, "temperature: too hot"),
    "elsewhere": (307, {"Location": "http://127.0.0.1:1/v1/chat/completions"}, "over there"),
}
"""Models that refuse -> the status, the headers, and what is said; `{key}` is the key that came."""


KEPT = ("says", "works", "busy", "picky")
"""The models after whose answers a connection can be kept."""


@dataclass(frozen=True)
class Heard:
    """A question that came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    port: int
    """The client's port, which tells its connections apart."""


class Provider(ThreadingHTTPServer):
    """What was asked is in `heard`, and how many clients hung up in `hung_up`; `over` lets those
    go that wait. `keeps`: connections stay open after whole answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.heard: list[Heard] = []
        self.hung_up = 0
        self.keeps = False
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    """One connection. Models: `says` answers, `quiet` tells no usage, `counts` streams until its
    client hangs up (`floods`: as fast as it can), `dies` breaks off within its answer and
    `dies-at-once` before it, `ends-early` ends in good order before its end, `silent` never
    answers, `stalls` stops within its answer,
    `works` streams thinking, text and two calls, `fails` sends an error within its answer, and
    `refuses` says at its end that it will not answer."""

    server: Provider
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.heard.append(Heard(self.path, headers, body, self.client_address[1]))
        self.close_connection = not (self.server.keeps and body["model"] in KEPT)
        try:
            self._answer(body["model"], body)
        except (BrokenPipeError, ConnectionResetError):
            self.server.hung_up += 1

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, model: str, body: dict[str, Any]) -> None:
        is_anthropic = self.path.endswith("/messages")
        if model in REFUSALS:
            self._refuse(*REFUSALS[model])
        elif (whole := plain_whole(self.path, model)) and not body.get("stream"):
            self._head("application/json", len(whole))
            self.wfile.write(whole)
        elif self.path == "/v1/completions":
            self._stream(model, completion_frames(model))
        elif model == "silent":
            self.server.over.wait(60)
        elif body.get("stream"):
            if model == "works":
                frames = anthropic_worked() if is_anthropic else openai_worked()
            else:
                frames = anthropic_frames(model) if is_anthropic else openai_frames(body)
            self._stream(model, frames)
        elif model in ("dies", "dies-at-once"):
            self._head("application/json", 1000)
            self.wfile.write(b'{"id": "half' if model == "dies" else b"")
        else:
            whole = anthropic_whole(model) if is_anthropic else openai_whole(model)
            self._head("application/json", len(whole))
            self.wfile.write(whole)

    def _refuse(self, status: int, headers: dict[str, str], text: str) -> None:
        key = self.headers.get("Authorization") or self.headers.get("x-api-key") or ""
        said = {"error": {"message": text.format(key=key.removeprefix("Bearer "))}}
        data = json.dumps(said).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, model: str, frames: list[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if model == "dies-at-once":
            return
        if model in ("counts", "floods"):
            while not self.server.over.wait(0.02 if model == "counts" else 0):
                self._chunk(frames[0] * (1 if model == "counts" else 1000))
            return
        for number, frame in enumerate(frames):
            if number == 3 and model == "dies":
                self._chunk(frame[:20])
                return
            if number == 3 and model == "ends-early":
                break
            if number == 3 and model == "fails":
                error = {
                    "type": "error",
                    "error": {"type": "overloaded_error", "message": "too hot"},
                }
                self._chunk(f"event: error\ndata: {json.dumps(error)}\n\n".encode())
                break
            if number == 3 and model == "stalls":
                self.server.over.wait(60)
            self._chunk(frame)
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _head(self, kind: str, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()


def plain_whole(path: str, model: str) -> bytes:
    """Embeddings, a raw completion or a token count; empty for other paths."""
    usage = {"prompt_tokens": 7, "total_tokens": 7}
    told: dict[str, Any]
    if path == "/v1/embeddings":
        vectors = [{"object": "embedding", "index": 0, "embedding": [0.5, -0.25]}]
        told = {"object": "list", "model": model, "data": vectors, "usage": usage}
    elif path == "/v1/completions":
        choice = {"index": 0, "text": "".join(TEXT), "finish_reason": "stop"}
        usage |= {"completion_tokens": 4, "total_tokens": 11}
        told = {"object": "text_completion", "model": model, "choices": [choice], "usage": usage}
    elif path == "/v1/messages/count_tokens":
        told = {"input_tokens": 12}
    else:
        return b""
    return json.dumps(told).encode()


def completion_frames(model: str) -> list[bytes]:
    """The events of a streamed raw completion."""
    chunk = {"object": "text_completion", "model": model}
    texts = [{**chunk, "choices": [{"index": 0, "text": text}]} for text in TEXT]
    end = {**chunk, "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    return [
        *(f"data: {json.dumps(one)}\n\n".encode() for one in (*texts, end)),
        b"data: [DONE]\n\n",
    ]


def openai_whole(model: str) -> bytes:
    """A chat completion."""
    return json.dumps(
        {
            "id": "chatcmpl-of-provider", "object": "chat.completion", "model": model,
            "choices": [{"index": 0, "finish_reason": "stop",
                         "message": {"role": "assistant", "content": "".join(TEXT)}}],
            "usage": {"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15},
        }
    ).encode()  # fmt: skip


def openai_frames(body: dict[str, Any]) -> list[bytes]:
    """The events of a streamed chat completion; the usage where it is asked for."""
    chunk: dict[str, Any] = {"id": "chatcmpl-of-provider", "object": "chat.completion.chunk",
                             "model": body["model"]}  # fmt: skip
    deltas = [{"content": one} for one in TEXT]
    told: list[dict[str, Any]] = [
        {**chunk, "choices": [{"index": 0, "delta": one, "finish_reason": None}]} for one in deltas
    ]
    reason = "content_filter" if body["model"] == "refuses" else "stop"
    told.append({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = {"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15}
        told.append({**chunk, "choices": [], "usage": usage})
    frames = [f"data: {json.dumps(one)}\n\n".encode() for one in told]
    return [*frames, b"data: [DONE]\n\n"]


def anthropic_whole(model: str) -> bytes:
    """A message."""
    return json.dumps(
        {
            "id": "msg_of_provider", "type": "message", "role": "assistant", "model": model,
            "content": [{"type": "text", "text": "".join(TEXT)}], "stop_reason": "end_turn",
            "usage": {"input_tokens": 11, "cache_read_input_tokens": 5, "output_tokens": 4},
        }
    ).encode()  # fmt: skip


def anthropic_frames(model: str) -> list[bytes]:
    """The events of a streamed message."""
    message = {"id": "msg_of_provider", "type": "message", "role": "assistant", "model": model,
               "content": [], "usage": {"input_tokens": 11, "cache_read_input_tokens": 5,
                                        "output_tokens": 1}}  # fmt: skip
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}
    told: list[dict[str, Any]] = [{"type": "message_start", "message": message}, block]
    told += [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": one}}
        for one in TEXT
    ]
    delta = {"stop_reason": "refusal" if model == "refuses" else "end_turn"}
    told += [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 4}},
        {"type": "message_stop"},
    ]
    return [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in told]


THOUGHTS = ("Hm, ", "fish.")
CALLS = (("find_fish", '{"kind": "shoal", "legs": 0}'), ("count", "{}"))
"""What `works` calls: a call's arguments are the JSON object without blanks around it."""


def openai_worked() -> list[bytes]:
    """The events of a chat completion with thinking, text and calls."""
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "reasoning_content": one} for one in THOUGHTS
    ]
    deltas += [{"content": one} for one in TEXT]
    for index, (name, arguments) in enumerate(CALLS):
        function = {"name": name, "arguments": ""}
        call = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
        deltas.append({"tool_calls": [call]})
        pieces = [] if arguments == "{}" else [arguments[:9], arguments[9:]]
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in pieces
        ]
    told: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": one}]} for one in deltas]
    told.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    usage: dict[str, Any] = {"prompt_tokens": 11, "completion_tokens": 9}
    usage["completion_tokens_details"] = {"reasoning_tokens": 2}
    usage["prompt_tokens_details"] = {"cached_tokens": 5}
    told.append({"choices": [], "usage": usage})
    return [*(f"data: {json.dumps(one)}\n\n".encode() for one in told), b"data: [DONE]\n\n"]


def anthropic_worked() -> list[bytes]:
    """The events of a message with thinking, text and calls."""
    usage = {"input_tokens": 6, "cache_read_input_tokens": 5, "output_tokens": 1}
    told: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"usage": usage}},
        {"type": "ping"},
    ]
    thoughts = [{"type": "thinking_delta", "thinking": one} for one in THOUGHTS]
    thoughts.append({"type": "signature_delta", "signature": "signed"})
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        ({"type": "thinking", "thinking": ""}, thoughts),
        ({"type": "text", "text": ""}, [{"type": "text_delta", "text": one} for one in TEXT]),
    ]  # fmt: skip
    for index, (name, arguments) in enumerate(CALLS):
        pieces = [""] if arguments == "{}" else ["", arguments[:9], arguments[9:]]
        block = {"type": "tool_use", "id": f"call_{index}", "name": name, "input": {}}
        blocks.append(
            (block, [{"type": "input_json_delta", "partial_json": one} for one in pieces])
        )
    for index, (block, deltas) in enumerate(blocks):
        told.append({"type": "content_block_start", "index": index, "content_block": block})
        told += [{"type": "content_block_delta", "index": index, "delta": one} for one in deltas]
        told.append({"type": "content_block_stop", "index": index})
    told.append(
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use"},
            "usage": {"output_tokens": 9},
        }
    )
    told.append({"type": "message_stop"})
    return [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in told]


@contextmanager
def provider() -> Iterator[Provider]:
    """A provider that answers until the end."""
    server = Provider()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
