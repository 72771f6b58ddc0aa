"""A real node for tests: its own home, free ports, real supervisord; ended by its own pids."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from bus.process.supervisor import Supervisor
from conf.settings import load_settings
from tests.harness.commands import CODE, ROOT, TREE, forked
from tests.harness.counts import count, count_node
from tests.harness.endings import end, living, noting

WITH_SPARE = {"SHOAL_RUNNER__SPARE": "true"} if TREE == ROOT else {}
"""What gives a node a spare runner, which older trees do not know."""
SERVICES = ("bus", "master", "worker", "telemetry", "gateway")
MODEL = "shoal-tiny"
IN_A_ROW = 12


def eventually(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """The first true value of `condition`, polled; fails, naming `what`, after `seconds`."""
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - began
        if waited > seconds:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(pause_s(waited))


def pause_s(waited: float) -> float:
    """Seconds until to ask again, after so many seconds of waiting: most questions are requests,
    and the processors are the tests' brake."""
    return min(0.15, max(0.02, waited / 10))


def answered(
    ask: Callable[[], Any], right: Callable[[Any], Any], what: str, seconds: float = 30.0
) -> Any:
    """The first answer of `ask` that is right, asked for again until then: each HTTP process of a
    gateway hears of a change in its own time. Fails with the last answer, naming `what`, after
    `seconds`."""
    began = time.monotonic()
    while not right(found := ask()):
        told = getattr(found, "text", found)
        waited = time.monotonic() - began
        assert waited < seconds, f"not within {seconds:g} s: {what}; {found!r} says {told!r}"
        time.sleep(pause_s(waited))
    return found


def everywhere(
    ask: Callable[[], Any], right: Callable[[Any], Any], what: str, seconds: float = 30.0
) -> None:
    """Wait until many answers of `ask` in a row are right. Each is to be asked for on a connection
    of its own, which any HTTP process of the gateway may take."""
    answered(
        lambda: [ask() for _ in range(IN_A_ROW)], lambda all_: all(map(right, all_)), what, seconds
    )


def free_base_port() -> int:
    """A port with a run of free ones after it, below the ephemeral range; processes of one test
    run that are beside each other look in ranges of their own."""
    runs = max(1, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    width = 12_000 // runs // 100 * 100
    first = 20_000 + number * width
    start = first + os.getpid() * 100 % (width // 2)
    for base in range(start, first + width, 100):
        with contextlib.suppress(OSError):
            for port in (base, base + 1, base + 2):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return base
    raise AssertionError("no free ports")


def shoal(
    *words: str,
    env: dict[str, str] | None = None,
    timeout: float = 120.0,
    inside: tuple[str, ...] = (),
    tree: Path = TREE,
) -> Any:
    """Run the command line of `tree`, on the machine that the words `inside` lead to, without a
    spare runner unless `env` says otherwise; forked where that makes no difference (see
    `commands`). Returns the completed process (text)."""
    return forked(*words, env=variables(env, tree), timeout=timeout, inside=inside, tree=tree)


def variables(env: Mapping[str, str] | None = None, tree: Path = TREE) -> dict[str, str]:
    """Return the environment of a command of a test: no colours, and no spare runner unless `env`
    says otherwise."""
    alone = {"SHOAL_RUNNER__SPARE": "false"} if tree == ROOT else {}
    return {**os.environ, "NO_COLOR": "1", **alone, **(env or {})}


@dataclass
class Stream:
    """One streamed chat completion, read by `read` in a thread of its own. `ends` counts its
    terminals."""

    read: Callable[[Stream], None]
    ends: int = 0
    text: str = ""
    finish: str | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    status: int | None = None
    done: bool = False
    ended_at: float | None = None
    broken: str | None = None
    at: list[float] = field(default_factory=list[float])
    comments: list[str] = field(default_factory=list[str])
    thread: threading.Thread | None = None
    started_at: float = 0.0

    def begin(self) -> Stream:
        """Ask for the answer, or for the same one anew with nothing of the last kept."""
        vars(self).update(vars(Stream(self.read, started_at=time.monotonic())))
        self.thread = threading.Thread(target=self.read, args=(self,), daemon=True)
        self.thread.start()
        return self

    def wait(self, seconds: float) -> Stream:
        """Wait for the end of the stream; fails when it is still open then."""
        assert self.thread is not None
        self.thread.join(seconds)
        assert not self.thread.is_alive(), f"stream still open after {seconds:g} s"
        return self

    def flowing(self, tokens: int = 5, seconds: float = 60.0) -> Stream:
        """Wait until some tokens have come. An answer that was whole before a reader who had to
        wait for a core could see it flow is asked for anew, at most four times."""
        tries = 5
        while True:
            eventually(
                lambda: len(self.at) >= tokens or self.ended_at is not None, seconds, "tokens flow"
            )
            if self.ended_at is None:
                return self
            tries -= 1
            assert tries and self.done and self.error is None, (
                f"ended early: {self.error or self.broken or self.text!r}"
            )
            self.begin()

    def take(self, line: str) -> None:
        """One line of the event stream."""
        if line.startswith(":"):
            self.comments.append(line[1:].strip())
        if not line.startswith("data: "):
            return
        if line == "data: [DONE]":
            self.done = True
            return
        data = json.loads(line[6:])
        if "error" in data:
            self.error = data["error"]
            self.ends += 1
            return
        self.usage = data.get("usage") or self.usage
        for choice in data["choices"]:
            delta = choice["delta"]
            content = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
            if content:
                self.text += content
                self.at.append(time.monotonic())
            if choice.get("finish_reason"):
                self.finish = choice["finish_reason"]
                self.ends += 1


class Node:
    """One node in a temporary home."""

    def __init__(self, **settings: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="shoal-test-")
        self.home = Path(self._folder.name) / "home"
        self.base_port = free_base_port()
        self.scheme = "https" if "SHOAL_HTTP_TLS_CERT" in settings else "http"
        self.url = f"{self.scheme}://127.0.0.1:{self.base_port}"
        # A process that sets its title must leave its environment readable: it is how a test
        # finds everything that its node started.
        self.env = {"SHOAL_HOME": str(self.home), "SPT_NOENV": "1", **settings}
        self.inside: tuple[str, ...] = ()
        self.tree = TREE
        self.headers: dict[str, str] = {}
        self.http = httpx.Client(base_url=self.url, timeout=60.0, verify=self.scheme == "http")

    def move(self, base_port: int) -> None:
        """Use other ports; before `up`."""
        self.http.close()
        self.base_port, self.url = base_port, f"http://127.0.0.1:{base_port}"
        self.http = httpx.Client(base_url=self.url, timeout=60.0)

    def move_to(self, host: str, inside: tuple[str, ...], key: str) -> None:
        """Run on another machine (see `network_namespaces`), with this API key; before `up`."""
        self.http.close()
        self.inside, self.url = inside, f"http://{host}:{self.base_port}"
        self.headers = {"Authorization": f"Bearer {key}"}
        self.env |= {"SHOAL_API_KEYS": key, "SHOAL_API_KEY": key, "SHOAL_HTTP_HOST": "0.0.0.0"}
        self.http = httpx.Client(base_url=self.url, timeout=60.0, headers=self.headers)

    def node_id(self) -> str:
        """The id that it was given at its first start."""
        return (self.home / "state" / "node-id").read_text().strip()

    def up(self, seconds: float = 90.0) -> None:
        """`shoal up`; returns when the node serves."""
        done = shoal(
            "up", "--home", str(self.home), "--base-port", str(self.base_port),
            env=self.env, timeout=seconds, inside=self.inside, tree=self.tree,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr + self.logs()

    def down(self) -> Any:
        """`shoal down`."""
        with noting(self.home):
            return self.shoal("down")

    def shoal(self, *words: str, timeout: float = 120.0) -> Any:
        """The command line, for this node."""
        return shoal(*words, env=self.env, timeout=timeout, inside=self.inside, tree=self.tree)

    def close(self) -> None:
        """End whatever of this node is left, by pid, and remove its home: no clean end, which is
        `down`."""
        paths = load_settings(home=self.home).paths
        end(self.home, paths)
        count_node(paths.logs)
        self.http.close()
        shutil.rmtree(paths.runtime, ignore_errors=True)
        self._folder.cleanup()

    def all_processes(self) -> list[psutil.Process]:
        """Every living process whose environment names this home."""
        found: list[psutil.Process] = []
        for pid in living(self.home):
            with contextlib.suppress(psutil.Error):
                found.append(psutil.Process(pid))
        return found

    def kill(self) -> float:
        """kill -9 everything of this node, by pid, until nothing is left; returns when it began."""
        at = time.monotonic()
        end(self.home, load_settings(home=self.home).paths)
        return at

    def log_lines(self, process: str) -> list[dict[str, Any]]:
        """What one process has logged, oldest first."""
        path = load_settings(home=self.home).paths.logs / f"{process}.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    def logs(self) -> str:
        """The ends of all logs, for a failing test."""
        parts: list[str] = []
        for path in sorted(self.home.rglob("*.log")):
            if path.name == "events.log":
                continue
            parts.append(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}")
        return "\n".join(parts)

    def processes(self) -> dict[str, int]:
        """Supervised processes that run: name to pid."""
        socket_path = load_settings(home=self.home).endpoints.supervisor
        return {p.name: p.pid for p in Supervisor(socket_path).list_processes() if p.pid}

    def pid(self, process: str) -> int:
        """The pid of one supervised process, by supervisord's own account."""
        return self.processes()[process]

    def runner(self) -> tuple[str, int]:
        """(name, pid) of the first running runner."""
        name, pid = next((n, p) for n, p in self.processes().items() if n.startswith("runner:"))
        return name, pid

    def state(self) -> dict[str, Any]:
        """The cluster's state, from `GET /state`."""
        return self.http.get("/state").json()["state"]

    def ready(self) -> bool:
        """Whether the model answers."""
        with contextlib.suppress(httpx.HTTPError):
            return self.http.get("/readyz").status_code == 200
        return False

    def chat(self, text: str, **fields: Any) -> httpx.Response:
        """A chat completion, not streamed."""
        messages = [{"role": "user", "content": text}]
        body = {"model": MODEL, "messages": messages, "temperature": 0, **fields}
        return self.http.post("/v1/chat/completions", json=body)

    def stream(self, text: str, **fields: Any) -> Stream:
        """A streamed chat completion, read in the background from now on."""
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        return Stream(lambda stream: self._read(stream, body)).begin()

    def _read(self, stream: Stream, body: dict[str, Any]) -> None:
        try:
            with httpx.stream(
                "POST",
                self.url + "/v1/chat/completions",
                json=body,
                headers=self.headers,
                timeout=180.0,
                verify=False,  # to read the system's certificates takes longer than an answer
            ) as response:
                stream.status = response.status_code
                if response.status_code != 200:
                    stream.error = json.loads(response.read())["error"]
                    stream.ends += 1
                    return
                for line in response.iter_lines():
                    stream.take(line)
        except httpx.HTTPError as error:
            stream.broken = repr(error)
        finally:
            stream.ended_at = time.monotonic()


def kill(pid: int, number: int = signal.SIGKILL) -> float:
    """Send a signal to a process that the test owns; returns when."""
    os.kill(pid, number)
    return time.monotonic()


def typed(node: Node, *words: str) -> subprocess.Popen[str]:
    """The command line under way, a process of its own. It heeds Ctrl-C, as a user's does; a test
    run in the background may have been told to ignore it."""
    count("calls")
    return subprocess.Popen(
        [sys.executable, "-P", "-c", CODE, *words],
        cwd=tempfile.gettempdir(),
        env={**os.environ, "PYTHONPATH": str(TREE), "NO_COLOR": "1", **node.env},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def running_node(**settings: str) -> Iterator[Node]:
    """A node that serves, for as long as the block lasts."""
    node = Node(**settings)
    try:
        node.up()
        yield node
    finally:
        node.close()
