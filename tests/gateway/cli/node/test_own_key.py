"""To whom the command line shows what a node's owner has."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.process.endpoints import Endpoints
from bus.process.identity import http_token, known_http_token
from bus.service import role_lock
from conf.paths import Paths, find_paths, make_folders
from gateway.cli.node.node_api import home_api

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"


class Listener:
    """Answers every request with `{}`, and remembers their heads."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                self.heads.append(connection.recv(65_536).decode())
                connection.sendall(ANSWER)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.delenv("SHOAL_API_KEY", raising=False)
    made = Listener()
    yield made
    made.close()


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    found = find_paths(tmp_path)
    make_folders(found)
    return found


def test_the_owners_token_is_shown_only_while_the_nodes_own_gateway_runs(
    listener: Listener, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = http_token(paths.state)
    api = home_api(listener.url, paths)
    api.get("/state")
    assert token not in listener.heads[-1], "a stranger may listen there"
    with role_lock(Endpoints(str(paths.runtime)), "gateway"):
        monkeypatch.setenv("SHOAL_API_KEY", "sk-other")
        api.get("/state")
    assert f"authorization: bearer {token}".casefold() in listener.heads[-1].casefold()
    api.get("/state")
    assert token not in listener.heads[-1] and "sk-other" in listener.heads[-1]


def test_a_token_that_others_may_read_is_none(paths: Paths) -> None:
    assert known_http_token(paths.state) is None, "and looking makes none"
    token = http_token(paths.state)
    assert known_http_token(paths.state) == token
    (paths.state / "http-token").chmod(0o644)
    assert known_http_token(paths.state) is None
