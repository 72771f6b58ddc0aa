"""Ctrl-C: real processes, real signals, a node that would talk for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.node_server import serving

ROOT = Path(__file__).resolve().parents[3]


class Talker:
    """Answers "endless" word by word until the client is gone, anything else with one word."""

    def __init__(self) -> None:
        self.hung_up = threading.Event()
        self.asked: list[list[dict[str, str]]] = []

    def answer(self, _method: str, _path: str, body: dict[str, Any]) -> Iterator[Any]:
        self.asked.append(body["messages"])
        return self._words(endless=body["messages"][-1]["content"] == "endless")

    def _words(self, *, endless: bool) -> Iterator[Any]:
        try:
            yield {"choices": [{"index": 0, "delta": {"content": "word\n"}}]}
            while endless and not self.hung_up.wait(0.01):
                yield {"choices": [{"index": 0, "delta": {"content": "."}}]}
        finally:
            # The server closes this iterator when it cannot write any more.
            self.hung_up.set()


@contextmanager
def shoal(*words: str, stdin: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    program = [sys.executable, "-P", "-m", "gateway.cli.app", *words]
    with subprocess.Popen(
        program,
        # A test run in the background may have been told to ignore Ctrl-C; a user has not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tempfile.gettempdir(),
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
    ) as process:
        yield process
        if process.poll() is None:
            process.kill()


def test_an_interrupt_ends_the_answer_at_the_node_too(tmp_path: Path) -> None:
    talker = Talker()
    with serving(talker.answer) as url:
        options = ("--home", str(tmp_path), "--url", url)
        with shoal("run", "m", "endless", *options, stdin=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "word\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "Traceback" not in said
        assert talker.hung_up.wait(10)


def test_in_a_chat_an_interrupt_ends_the_answer_and_not_the_chat(tmp_path: Path) -> None:
    talker = Talker()
    with serving(talker.answer) as url:
        with shoal("chat", "m", "--home", str(tmp_path), "--url", url) as process:
            assert process.stdout is not None and process.stdin is not None
            process.stdin.write("endless\n")
            process.stdin.flush()
            assert process.stdout.readline() == "word\n"
            process.send_signal(signal.SIGINT)
            assert talker.hung_up.wait(10)
            talker.hung_up.clear()
            rest, said = process.communicate("next\n", timeout=30)
        assert process.returncode == 0
        assert rest.endswith("word\n\n") and "(stopped)" in said
        assert [talk[-1]["content"] for talk in talker.asked] == ["endless", "next"]
        assert talker.asked[1][1]["role"] == "assistant"
