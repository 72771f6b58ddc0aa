"""A runner slot as a real process, with its worker and its gateways played over real sockets."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bus.links.transport import Link
from bus.process.endpoints import Endpoints
from bus.wire.codec import Envelope, decode, encode
from bus.wire.data_frames import pack_to_runner, unpack_to_gateway
from bus.wire.ids import Boot, InstanceId, ModelId, NodeId, RequestId
from bus.wire.messages.control import RunnerSpec, SlotEnded, SlotHello
from bus.wire.messages.requests import GenerationRequest, TextPrompt
from bus.wire.messages.tokens import (
    DATA_PROTOCOL_MAX,
    DATA_PROTOCOL_MIN,
    Accepted,
    AnswerSoFar,
    ChoiceEnd,
    Displaced,
    Entry,
    Failed,
    Finished,
    Hello,
    Ping,
    Refused,
    StepEntries,
    Submit,
    Suspended,
    ToGateway,
    TokenDelta,
    ToRunner,
)
from bus.wire.messages.wire import Message
from conf.blas import prepared_blas
from conf.paths import find_paths, make_folders
from conf.settings import load_settings
from tests.harness import forks
from tests.harness.counts import count

ROOT = Path(__file__).resolve().parents[2]
MODEL = ModelId("toy")
PING_S = 0.5
PATIENCE_S = 30.0


def request(name: str, text: str = "hello world", **changes: object) -> GenerationRequest:
    fields = {"max_tokens": 8, "prompt": TextPrompt(text=text), "ignore_eos": True} | changes
    return GenerationRequest.model_validate(
        {"request_id": RequestId(name), "model": MODEL, "sampling": {"temperature": 0.0}, **fields}
    )


@dataclass
class Slot:
    """A started runner and its worker's end of the talk."""

    process: subprocess.Popen[bytes] | forks.Fork
    worker: Link
    endpoints: Endpoints
    spec: RunnerSpec
    peer: bytes = b""
    hellos: list[SlotHello] = field(default_factory=list)
    ended: SlotEnded | None = None
    other: list[Message] = field(default_factory=list)

    def tell(self, message: Message) -> None:
        envelope = Envelope(NodeId("test"), "worker", Boot("w"), 1, message)
        self.worker.send(self.peer, encode(envelope))

    def listen(self) -> None:
        while (frames := self.worker.receive()) is not None:
            self.peer = frames[0]
            message = decode(frames[-1]).message
            if isinstance(message, SlotHello):
                self.hellos.append(message)
            elif isinstance(message, SlotEnded):
                self.ended = message
            else:
                self.other.append(message)

    @property
    def phase(self) -> str:
        return self.hellos[-1].phase if self.hellos else ""

    def until(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
        end = time.monotonic() + seconds
        while True:
            self.listen()
            if condition():
                return
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds:g} s: {what}; phase {self.phase!r}")
            self.worker.socket.poll(20)

    def ready(self) -> Slot:
        self.until(lambda: bool(self.hellos), "a first hello")
        self.tell(self.spec)
        self.until(lambda: self.phase in ("ready", "ended"), "ready", 90.0)
        assert self.phase == "ready", self.hellos[-1].message
        return self

    def exit_code(self, seconds: float = PATIENCE_S) -> int:
        self.until(lambda: self.process.poll() is not None, "the process's end", seconds)
        self.listen()
        return self.process.returncode


@contextlib.contextmanager
def started_slot(
    home: Path,
    path: Path,
    /,
    *,
    fault: str = "",
    script: Path | None = None,
    supervised: bool = False,
    llama_server: Path | None = None,
    **changes: object,
) -> Iterator[Slot]:
    """A runner in `home`, told by us what to be; ended by its own pid. `fault` starts one whose
    engine fails so, `script` one whose engine says what is written there; `supervised` gives it the
    standard input that supervisord would; `llama_server` is the program for a GGUF model."""
    paths = find_paths(home)
    make_folders(paths)
    endpoints = Endpoints(str(paths.runtime))
    worker = Link("router")
    worker.bind(endpoints.worker)
    fields = {
        "instance": InstanceId("inst-1"),
        "generation": 1,
        "rank": 0,
        "size": 1,
        "model": MODEL,
        "path": str(path),
        "dtype": "float32",
        "first_layer": 0,
        "last_layer": 2,
        "context_tokens": 2048,
        "addresses": (endpoints.runner("00"),),
        "memory_limit_bytes": 1 << 30,
    }
    spec = RunnerSpec.model_validate(fields | changes)
    environment = os.environ | {"SHOAL_HOME": str(home), "SHOAL_SLOT": "00"}
    environment |= {"PYTHONPATH": str(ROOT)}
    blas = prepared_blas(load_settings(home=home)).variables
    environment |= blas
    program = "runner.__main__"
    if fault:
        environment["SHOAL_TEST_FAULT"] = fault
        program = "tests.harness.faulty_runner"
    if script is not None:
        environment["SHOAL_TEST_SCRIPT"] = str(script)
        program = "tests.harness.scripted_runner"
    if supervised:
        environment["SUPERVISOR_ENABLED"] = "1"
    if llama_server is not None:
        environment["SHOAL_RUNNER__LLAMA_SERVER"] = str(llama_server)
    count("runners")
    if supervised:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", program],
            cwd=paths.run,
            env=environment,
            stdin=subprocess.PIPE,
        )
    else:
        process = _forked(program, environment, blas, paths.run)
    slot = Slot(process, worker, endpoints, spec)
    try:
        yield slot
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        if isinstance(process, subprocess.Popen) and process.stdin is not None:
            process.stdin.close()
        worker.close()
        shutil.rmtree(paths.runtime, ignore_errors=True)


def _forked(
    program: str, environment: Mapping[str, str], blas: Mapping[str, str], folder: Path
) -> subprocess.Popen[bytes] | forks.Fork:
    """Start a runner without importing its modules again."""
    with open(os.devnull, "rb") as nothing:
        return forks.started(
            ("runner.__main__", "tests.harness.forked_runner"),
            ROOT,
            "tests.harness.forked_runner:main",
            (program,),
            env=environment,
            cwd=folder,
            streams=(nothing.fileno(), 1, 2),
            variables=blas,
        )


@dataclass
class Stream:
    """What one request has got so far."""

    answer: Accepted | Refused | None = None
    displaced: int = 0
    so_far: AnswerSoFar | None = None
    entries: list[Entry] = field(default_factory=list)

    @property
    def end(self) -> Finished | Failed | None:
        last = self.entries[-1] if self.entries else None
        return last if isinstance(last, Finished | Failed) else None

    @property
    def deltas(self) -> list[TokenDelta]:
        return [entry for entry in self.entries if isinstance(entry, TokenDelta)]

    @property
    def finishes(self) -> list[str]:
        return [entry.finish_reason for entry in self.entries if isinstance(entry, ChoiceEnd)]

    def text(self, choice: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas if delta.choice == choice)

    @property
    def tokens(self) -> int:
        return sum(delta.tokens for delta in self.deltas)

    def check(self) -> None:
        assert [entry.seq for entry in self.entries] == list(range(len(self.entries)))
        terminals = [e for e in self.entries if isinstance(e, Finished | Failed)]
        assert len(terminals) == 1
        assert self.entries[-1] is terminals[0]


class FakeGateway:
    """A real DEALER that says what a gateway says. `pings` False lets the runner think it dead;
    `pinged` counts the pings, each of which is answered."""

    def __init__(self, slot: Slot, name: str = "gw", *, protocol: int = DATA_PROTOCOL_MAX) -> None:
        self.slot = slot
        self.link = Link("dealer", identity=name)
        self.link.connect(slot.endpoints.runner("00"))
        self.streams: dict[str, Stream] = {}
        self.heard: list[ToGateway] = []
        self.messages = 0
        self.pings = True
        self.pinged = 0
        self._pinged_at = 0.0
        self.send(Hello(name, Boot(name), DATA_PROTOCOL_MIN, protocol))

    def send(self, message: ToRunner) -> None:
        self.pinged += isinstance(message, Ping)
        assert self.link.send(pack_to_runner(message))

    def submit(
        self,
        asked: GenerationRequest,
        *,
        credit: int = 10_000,
        remaining_ms: int = 60_000,
        waited_ms: int = 0,
        so_far: AnswerSoFar | None = None,
    ) -> Stream:
        stream = self.streams.setdefault(asked.request_id, Stream())
        generation = self.slot.spec.generation
        self.send(Submit(asked, generation, credit, remaining_ms, (), waited_ms, so_far))
        return stream

    def listen(self, wait_ms: int = 10) -> None:
        now = time.monotonic()
        if self.pings and now - self._pinged_at > PING_S:
            self._pinged_at = now
            self.send(Ping(Boot("gw")))
        self.link.socket.poll(wait_ms)
        while (frames := self.link.receive()) is not None:
            message = unpack_to_gateway(frames[-1])
            self.messages += 1
            if isinstance(message, StepEntries):
                for entry in message.entries:
                    self.streams[entry.request_id].entries.append(entry)
            elif isinstance(message, Accepted | Refused):
                self.streams[message.request_id].answer = message
            else:
                if isinstance(message, Displaced):
                    self.streams[message.request_id].displaced += 1
                elif isinstance(message, Suspended):
                    self.streams[message.request_id].so_far = message.so_far
                self.heard.append(message)

    def until(self, condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"not within {seconds:g} s: {what}")
            self.listen()

    def ended(self, *streams: Stream, seconds: float = 30.0) -> None:
        self.until(lambda: all(stream.end for stream in streams), "ends", seconds)
        for stream in streams:
            stream.check()

    def close(self) -> None:
        self.link.close()
