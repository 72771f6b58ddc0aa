"""Talks to llama-server over its Unix socket: health, tokens, and streams of answers.

Each request has a connection of its own, because a second request on one connection may meet a
reset. Every wait has a deadline. Closing a stream makes llama-server stop its row.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from runner.llama.frames import Frame, LostAnswer, News, failed, frame_of

ASK_S = 10.0
"""Deadline of a short question, in seconds."""
STILL_S, STALLED_S, ONE_STALLED_S = 10.0, 120.0, 150.0
"""Limits of silence in seconds. If all streams are silent for `STILL_S` while llama-server uses no
processor time, or for `STALLED_S` while it does, the runner ends. If one stream is silent for
`ONE_STALLED_S`, its request ends. Even a slow machine computes a batch of a prompt in less."""
SLOT_S = 30.0
"""Deadline of writing or reading the KV of a slot, in seconds."""
MOST_LINE_BYTES, MOST_ANSWER_BYTES = 1 << 20, 16 << 20
PROBES = (
    "Hello, world! It's 12:34 on 2026-11-29; isn't it?", "  leading and   inner spaces  ",
    "line\nbreaks\r\n\r\n\n\tand\ttabs \n ", "1234567890 3.14159 1,000,000 0x1F",
    "def f(x):\n    return {'a': [1, 2], \"b\": None}  # why?\n", "Grüße aus Köln, café, naïve",
    "Привет, как дела?", "你好，世界。今天天气很好！", "こんにちは世界", "안녕하세요 세계",
    "مرحبا بالعالم", "नमस्ते दुनिया", "\U0001f600\U0001f469\u200d\U0001f467 \u2708\ufe0f",
    "e\u0301 \u00a0 \u2003 \u200b zero", "<b>x</b> & y|z ~^`@#$%*()_+=", "ALLCAPS CamelCase",
    "we've they'll I'M YOU'RE he'd", "https://example.org/a?b=c&d=%20#e", "\n\n\n\n", " ", "'",
)  # fmt: skip
"""Sample texts. The tokenizer that shoal built from the file must give the same ids for them as
llama-server."""


class LlamaTrouble(Exception):
    """llama-server did not answer, or answered something else than expected."""


class _UnixConnection(http.client.HTTPConnection):
    """A connection to a Unix socket. `opened` remains the socket even after `http.client` has
    handed it to its response object, so `Stream.close` can shut it down."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self.opened: socket.socket | None = None
        self._path = str(path)
        self._timeout_s = timeout_s

    def connect(self) -> None:
        self.sock = self.opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._timeout_s)
        self.sock.connect(self._path)


class LlamaClient:
    """Sends requests to the llama-server at a Unix socket. May be used in any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def is_ready(self) -> bool:
        """Return whether the model is loaded and answers."""
        try:
            return self._ask("GET", "/health")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def build(self) -> int:
        """Return the number of llama-server's build; 0 if it does not say. Raises LlamaTrouble."""
        text = self.build_name()
        number = text.partition("-")[0].removeprefix("b")
        return int(number) if number.isdecimal() else 0

    def build_name(self) -> str:
        """Return the name of llama-server's build; "" if it does not say. Raises LlamaTrouble."""
        return str(self._answer("GET", "/props").get("build_info", ""))[:100]

    def save_slot(self, number: int, file: str) -> None:
        """Write the KV of a slot to a file in the folder of slots. Raises LlamaTrouble."""
        self._json("POST", f"/slots/{number}?action=save", {"filename": file}, SLOT_S)

    def restore_slot(self, number: int, file: str) -> int:
        """Read the KV of a slot from a file in the folder of slots; return the number of its
        tokens. Raises LlamaTrouble."""
        route = f"/slots/{number}?action=restore"
        answer = self._json("POST", route, {"filename": file}, SLOT_S)
        count = cast(dict[str, Any], answer).get("n_restored") if isinstance(answer, dict) else 0
        return count if isinstance(count, int) else 0

    def tokens(self, text: str, *, special: bool = False, plain: bool = False) -> list[int]:
        """Return the token ids that llama-server gives a text. `special`: add the special tokens
        around an input. `plain`: special tokens inside the text are ordinary text. Raises
        LlamaTrouble."""
        body = {"content": text, "add_special": special, "parse_special": not plain}
        tokens = self._answer("POST", "/tokenize", body).get("tokens")
        if not isinstance(tokens, list):
            raise LlamaTrouble("llama-server's answer to /tokenize has no tokens")
        return cast(list[int], tokens)

    def scores(self, query: str, documents: Sequence[str]) -> tuple[list[float], int]:
        """Return a reranker's score of each document, and the tokens of all inputs together. Raises
        LlamaTrouble."""
        body = {"query": query, "documents": list(documents)}
        scores: dict[int, float] = {}
        answer = cast(dict[str, Any], self._json("POST", "/rerank", body, within_s=ONE_STALLED_S))
        try:
            for entry in answer["results"]:
                scores[entry["index"]] = float(entry["relevance_score"])
            tokens = int(answer["usage"]["prompt_tokens"])
        except (KeyError, TypeError, ValueError) as error:
            raise LlamaTrouble(f"llama-server's answer to /rerank is wrong: {error}") from error
        if scores.keys() != set(range(len(documents))):
            count = len(documents)
            raise LlamaTrouble(f"llama-server scored {len(scores)} of {count} documents")
        return [scores[index] for index in range(len(documents))], tokens

    def vectors(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the vector of each prompt, given as token ids. It has length 1. Raises
        LlamaTrouble."""
        body = {"content": [list(prompt) for prompt in prompts], "embd_normalize": 2}
        vectors: dict[int, list[float]] = {}
        answer = self._json("POST", "/embedding", body, within_s=ONE_STALLED_S)
        try:
            for entry in cast(list[Any], answer):
                (vectors[entry["index"]],) = entry["embedding"]
        except (KeyError, TypeError, ValueError) as error:
            raise LlamaTrouble(f"llama-server's answer to /embedding is wrong: {error}") from error
        if vectors.keys() != set(range(len(prompts))):
            raise LlamaTrouble(f"llama-server made {len(vectors)} vectors of {len(prompts)} inputs")
        return [vectors[index] for index in range(len(prompts))]

    def stream(self, body: Mapping[str, Any], post: Callable[[News], None]) -> Stream:
        """Start an answer with `body`. Another thread calls `post` with each frame."""
        return Stream(self._path, body, post)

    def _answer(self, verb: str, route: str, body: object = None) -> dict[str, Any]:
        answer = self._json(verb, route, body)
        if not isinstance(answer, dict):
            raise LlamaTrouble(f"llama-server's answer to {route} is not a JSON object")
        return cast(dict[str, Any], answer)

    def _json(self, verb: str, route: str, body: object = None, within_s: float = ASK_S) -> object:
        try:
            status, data = self._ask(verb, route, body, within_s)
            answer: object = json.loads(data)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LlamaTrouble(f"llama-server did not answer {route}: {error}") from error
        if status != 200:
            raise LlamaTrouble(f"llama-server answered {route} with {status}: {data[:200]!r}")
        return answer

    def _ask(
        self, verb: str, route: str, body: object = None, within_s: float = ASK_S
    ) -> tuple[int, bytes]:
        connection = _UnixConnection(self._path, within_s)
        with contextlib.closing(connection):
            connection.request(verb, route, None if body is None else _packed(body), _HEADERS)
            answer = connection.getresponse()
            return answer.status, answer.read(MOST_ANSWER_BYTES)


class Stream:
    """One answer, which a separate thread reads and posts. Its last post is the last frame or a
    `LostAnswer`."""

    def __init__(self, path: Path, body: Mapping[str, Any], post: Callable[[News], None]) -> None:
        self._connection = _UnixConnection(path, ONE_STALLED_S)
        self._body = body
        self._post = post
        self._is_closed = False
        threading.Thread(target=self._run, name="llama-stream", daemon=True).start()

    def close(self) -> None:
        """Stop the answer. Called in the main thread; does not wait."""
        self._is_closed = True
        opened = self._connection.opened
        if opened is not None:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            with contextlib.closing(self._connection):
                self._read()
        except TimeoutError:
            self._lose(f"llama-server sent nothing for {ONE_STALLED_S:g} s")
        except (OSError, http.client.HTTPException, ValueError) as error:
            # `close` shuts down the socket alone, so http.client's own objects stay as they are
            self._lose(f"the connection to llama-server broke: {type(error).__name__}")

    def _lose(self, why: str) -> None:
        if not self._is_closed:
            self._post(LostAnswer(why))

    def _read(self) -> None:
        connection = self._connection
        connection.request("POST", "/completion", _packed(self._body), _HEADERS)
        if self._is_closed:
            return
        answer = connection.getresponse()
        if answer.status != 200:
            words = answer.read(MOST_LINE_BYTES).decode(errors="replace")
            why = f"llama-server refused it ({answer.status}): {words[:300]}"
            self._post(LostAnswer(why, refused=answer.status < 500))
            return
        if self._body.get("stream") is False:
            self._read_whole(answer.read(MOST_ANSWER_BYTES))
            return
        while line := answer.readline(MOST_LINE_BYTES):
            if not line.startswith(b"data:"):
                if line.startswith(b"error:"):
                    self._post(failed(line[6:].decode(errors="replace")))
                    return
                continue
            news = frame_of(line[5:])
            if not self._is_closed:
                self._post(news)
            if isinstance(news, LostAnswer) or news.stop is not None:
                return
        self._lose("llama-server ended its answer early")

    def _read_whole(self, data: bytes) -> None:
        """Post an answer that is not streamed."""
        news = frame_of(data)
        if isinstance(news, Frame) and news.stop is None:
            news = LostAnswer("llama-server's answer does not say why it stopped")
        if not self._is_closed:
            self._post(news)


def differing(
    client: LlamaClient, encode: Callable[[str], Sequence[int]], probes: Sequence[str] = PROBES
) -> str:
    """Return the first of `probes` for which `encode` and llama-server give different token ids; ""
    if they agree on all. Raises LlamaTrouble."""
    for text in probes:
        if list(encode(text)) != client.tokens(text):
            return text
    return ""


def _packed(body: object) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


_HEADERS = {"Content-Type": "application/json"}
