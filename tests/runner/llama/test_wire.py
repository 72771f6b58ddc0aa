"""What llama-server sends is read, whatever it is."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.llama.frames import Frame, LostAnswer, News, frame_of
from runner.llama.wire import LlamaClient, LlamaTrouble, differing

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(max_size=9), PLAIN, max_size=2)
KEYS = ("content", "tokens_predicted", "stop", "stop_type", "timings", "prompt_progress", "error")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def test_frames_have_text_progress_or_an_end() -> None:
    first = {"content": "a", "tokens_predicted": 3, "stop": False}
    assert frame_of(json.dumps(first).encode()) == Frame("a", 3)
    last = {**first, "stop": True, "stop_type": "limit", "timings": {"cache_n": 7}}
    assert frame_of(json.dumps(last).encode()) == Frame("a", 3, stop="limit", cached=7)
    progress = {"prompt_progress": {"total": 9, "processed": 4}, "content": ""}
    assert frame_of(json.dumps(progress).encode()) == Frame(read=4, prompt=9)
    lost = frame_of(b'{"error": {"message": "bad"}}')
    assert isinstance(lost, LostAnswer) and "bad" in lost.why


@given(st.binary(max_size=50) | st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, JSON)))
def test_anything_else_is_a_lost_answer(sent: Any) -> None:
    data = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    assert isinstance(frame_of(data), Frame | LostAnswer)


def served(folder: Path, answer: Callable[[socket.socket], None]) -> Path:
    """Serve one connection: read a request and let `answer` act."""
    path = folder / "s"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def run() -> None:
        with listener, listener.accept()[0] as connection:
            request = b""
            while not request.endswith(b"}"):
                request += connection.recv(1 << 16)
            answer(connection)

    threading.Thread(target=run, daemon=True).start()
    return path


def news_of(path: Path) -> tuple[Any, Queue[News]]:
    news: Queue[News] = Queue()
    return LlamaClient(path).stream({"prompt": [1]}, news.put), news


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", "broke"),
        (b"<html>busy</html>", "broke"),
        (HEAD + event(content="a", tokens_predicted=1, stop=False), "ended its answer early"),
        (HEAD + b"data: {]\n\n", "cannot read"),
        (HEAD + b'error: {"message": "out of memory"}\n\n', "out of memory"),
        (HEAD + event(error={"message": "no room"}), "no room"),
        (b"HTTP/1.1 400 Bad\r\nContent-Length: 3\r\n\r\nbad", "refused it (400): bad"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (3 << 20), "ended its answer early"),
    ],
)
def test_an_answer_that_goes_wrong_is_lost_with_a_reason(
    tmp_path: Path, sent: bytes, said: str
) -> None:
    _, news = news_of(served(tmp_path, lambda connection: connection.sendall(sent)))
    last = news.get(timeout=10)
    while isinstance(last, Frame):
        last = news.get(timeout=10)
    assert said in last.why


@pytest.mark.parametrize(("status", "refused"), [(400, True), (500, False), (503, False)])
def test_an_error_of_llama_server_is_not_blamed_on_the_request(
    tmp_path: Path, status: int, refused: bool
) -> None:
    sent = b"HTTP/1.1 %d No\r\nContent-Length: 3\r\n\r\nbad" % status
    _, news = news_of(served(tmp_path, lambda connection: connection.sendall(sent)))
    last = news.get(timeout=10)
    assert not isinstance(last, Frame) and last.refused is refused


def test_a_closed_stream_ends_the_connection_and_says_no_more(tmp_path: Path) -> None:
    ended = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(HEAD + event(content="a", tokens_predicted=1, stop=False))
        connection.settimeout(10)
        while connection.recv(1024):
            pass
        ended.set()

    stream, news = news_of(served(tmp_path, answer))
    assert news.get(timeout=10) == Frame("a", 1)
    stream.close()
    assert ended.wait(10) and news.empty()


def test_nobody_at_the_socket_is_no_health_and_a_lost_stream(tmp_path: Path) -> None:
    client = LlamaClient(tmp_path / "nobody")
    assert not client.is_ready()
    with pytest.raises(LlamaTrouble):
        client.tokens("x")
    _, news = news_of(tmp_path / "nobody")
    assert isinstance(news.get(timeout=10), LostAnswer)


class OtherClient(LlamaClient):
    """Tokenises each character by its number."""

    def tokens(self, text: str) -> list[int]:
        return [ord(character) for character in text]


def test_tokenizers_that_differ_are_found(tmp_path: Path) -> None:
    client = OtherClient(tmp_path)
    assert differing(client, lambda text: [*map(ord, text)]) == ""
    assert differing(client, lambda text: [*map(ord, text.strip())])


def test_an_answer_in_one_piece_has_ids_and_scores(tmp_path: Path) -> None:
    score = {"id": 5, "logprob": -0.5, "top_logprobs": [{"id": 5, "logprob": -0.5}]}
    whole = {
        "content": "a", "tokens": [5], "tokens_predicted": 1, "stop": True, "stop_type": "limit",
        "completion_probabilities": [score],
    }  # fmt: skip

    def news_of_whole(sent: bytes) -> News:
        news: Queue[News] = Queue()
        path = served(tmp_path, lambda connection: connection.sendall(sent))
        LlamaClient(path).stream({"prompt": [1], "stream": False}, news.put)
        got = news.get(timeout=10)
        path.unlink()
        return got

    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    frame = news_of_whole(head + json.dumps(whole).encode())
    assert isinstance(frame, Frame) and frame.ids == (5,)
    assert [(each.token, each.logprob, each.top) for each in frame.scores] == [
        (5, -0.5, ((5, -0.5),))
    ]
    lost = news_of_whole(head + json.dumps({**whole, "stop": False}).encode())
    assert isinstance(lost, LostAnswer) and "does not say why it stopped" in lost.why


def test_streams_that_are_closed_at_any_time_end_quietly(tmp_path: Path) -> None:
    listener, news = socket.socket(socket.AF_UNIX), Queue[News]()
    listener.bind(str(tmp_path / "s"))
    listener.listen(64)

    def answer() -> None:
        with listener:
            for _ in range(60):
                with listener.accept()[0] as connection, contextlib.suppress(OSError):
                    connection.recv(1 << 16)
                    connection.sendall(
                        HEAD.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n")
                    )
                    for _ in range(20):
                        data = event(content="a", tokens_predicted=1, stop=False)
                        connection.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    threading.Thread(target=answer, daemon=True).start()
    before = threading.excepthook
    raised: list[Any] = []
    threading.excepthook = raised.append
    try:
        for turn in range(60):
            stream = LlamaClient(tmp_path / "s").stream({"prompt": [1]}, news.put)
            for _ in range(turn * 40):
                pass
            stream.close()
        threads = [each for each in threading.enumerate() if each.name == "llama-stream"]
        for thread in threads:
            thread.join(10)
    finally:
        threading.excepthook = before
    assert not raised
