"""A role that answers requests, in this process, with gateways over real sockets and threads."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from bus.client import Speaker
from bus.links.reactor import PollReactor
from bus.links.transport import Link
from bus.process.endpoints import Endpoints
from bus.process.logs import Log
from bus.service import Shell
from bus.wire.data_frames import pack_to_runner, unpack_to_gateway
from bus.wire.ids import Boot, InstanceId, ModelId, NodeId, RequestId
from bus.wire.messages.control import Phase, RunnerSpec
from bus.wire.messages.requests import GenerationRequest
from bus.wire.messages.tokens import (
    Accepted,
    Displaced,
    Entry,
    Failed,
    Finished,
    Hello,
    Pong,
    Refused,
    StepEntries,
    Submit,
)
from runner import lifecycle
from runner.recorder import FlightRecorder
from runner.roles.role import Factories, RoleParts, ServingRole

PATIENCE_S = 20.0
AnyRole = TypeVar("AnyRole", bound=ServingRole)


class Host:
    """What the shell is to its role."""

    phase: Phase = "loading"

    def __init__(self) -> None:
        self.role: ServingRole | None = None
        self.left: tuple[int, str, str] | None = None

    def signal(self, signal: lifecycle.Signal) -> None:
        self.phase = lifecycle.signalled(self.phase, signal)
        assert self.role is not None
        self.role.entered(self.phase)

    def leave(self, code: int, reason: str, message: str) -> None:
        self.left = (code, reason, message)


class Gateway:
    """One gateway process: all answers to each submit, and the entries of each request."""

    def __init__(self, address: str, name: str) -> None:
        self.link = Link("dealer", identity=name)
        self.link.connect(address)
        self.answers: dict[str, list[Accepted | Refused | Displaced]] = {}
        self.entries: dict[str, list[Entry]] = {}
        self.pong: Pong | None = None
        self.send(Hello(name, Boot(name), 1, 8))

    def send(self, message: Any) -> None:
        assert self.link.send(pack_to_runner(message))

    def submit(
        self,
        name: str,
        prompt: Any,
        *,
        credit: int = 64,
        remaining_ms: int = 60_000,
        sharer: tuple[str, ...] = (),
        generation: int = 1,
        model: str = "m",
        **fields: Any,
    ) -> None:
        request = GenerationRequest(
            request_id=RequestId(name), model=ModelId(model), prompt=prompt, **fields
        )
        self.send(Submit(request, generation, credit, remaining_ms, sharer))

    def receive(self) -> None:
        while (frames := self.link.receive()) is not None:
            message = unpack_to_gateway(frames[-1])
            if isinstance(message, StepEntries):
                for entry in message.entries:
                    self.entries.setdefault(entry.request_id, []).append(entry)
            elif isinstance(message, Accepted | Refused | Displaced):
                self.answers.setdefault(message.request_id, []).append(message)
            elif isinstance(message, Pong):
                self.pong = message

    def has_ended(self, name: str) -> bool:
        mine = self.entries.get(name, [])
        return bool(mine) and isinstance(mine[-1], Finished | Failed)


def bare_parts(folder: Path, host: Any, reactor: PollReactor, logged: io.StringIO) -> RoleParts:
    """Return the parts of a role that never loads anything."""
    spec = RunnerSpec(
        instance=InstanceId("i"),
        generation=1,
        rank=0,
        size=1,
        model=ModelId("m"),
        path="",
        dtype="float32",
        first_layer=0,
        last_layer=1,
        context_tokens=64,
        addresses=(f"ipc://{folder}/data",),
        memory_limit_bytes=1,
    )
    log, never = Log(node="n", process="runner:00", stream=logged), cast(Any, None)
    speaker = Speaker(NodeId("n"), "runner:00", Boot("b"))
    shell = Shell(speaker, Endpoints(str(folder)), reactor, log)
    factories = Factories(never, never, never, never, never, never, never, never)
    return RoleParts(spec, host, shell, factories, FlightRecorder())


class Site(Generic[AnyRole]):
    """A role that is ready, and one gateway; `connect` adds others."""

    def __init__(
        self,
        folder: Path,
        make: Callable[[RoleParts], AnyRole],
        factories: dict[str, Any] | None = None,
        **spec: Any,
    ) -> None:
        self.reactor, self.host = PollReactor(), Host()
        self.address = f"ipc://{folder}/data"
        self.spec = RunnerSpec(
            instance=InstanceId("i"),
            generation=1,
            rank=0,
            size=1,
            model=ModelId("m"),
            first_layer=0,
            last_layer=1,
            addresses=(self.address,),
            **{"path": "", "dtype": "float32", "memory_limit_bytes": 1 << 30, **spec},
        )
        never = cast(Any, None)
        names = (
            "load_engine", "load_follower", "load_text", "load_embedder", "load_inputs",
            "form_group", "open_exchanges", "open_maker",
        )  # fmt: skip
        parts = Factories(**{**dict.fromkeys(names, never), **(factories or {})})
        self.logged = io.StringIO()
        log = Log(node="n", process="runner:00", stream=self.logged)
        speaker = Speaker(NodeId("n"), "runner:00", Boot("b"))
        shell = Shell(speaker, Endpoints(str(folder)), self.reactor, log)
        self.recorder = FlightRecorder()
        self.role = make(RoleParts(self.spec, self.host, shell, parts, self.recorder))
        self.host.role = self.role
        self.gateways: list[Gateway] = []
        self.gateway = self.connect("gw")
        self.role.begin()
        self.until(lambda: self.host.phase == "ready" or self.host.left is not None)

    def connect(self, name: str) -> Gateway:
        self.gateways.append(Gateway(self.address, name))
        return self.gateways[-1]

    def hang_up(self, gateway: Gateway) -> None:
        self.gateways.remove(gateway)
        gateway.link.close()

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, "in time"
            self.reactor.turn(0.01)
            for gateway in self.gateways:
                gateway.receive()

    def noted(self, phase: str, name: str) -> bool:
        """Whether the flight recorder has an entry of a request."""
        wanted = {"phase": phase, "request_id": name}
        return any(wanted.items() <= entry.items() for entry in self.recorder.report())

    def ended(self, name: str, gateway: Gateway | None = None) -> Finished | Failed:
        gateway = gateway or self.gateway
        self.until(lambda: gateway.has_ended(name))
        entries: Sequence[Entry] = gateway.entries[name]
        assert [entry.seq for entry in entries] == list(range(len(entries)))
        assert sum(isinstance(entry, Finished | Failed) for entry in entries) == 1
        last = entries[-1]
        assert isinstance(last, Finished | Failed)
        return last

    def accepted(self, name: str, gateway: Gateway | None = None) -> Accepted:
        gateway = gateway or self.gateway
        self.until(lambda: gateway.answers.get(name))
        answer = gateway.answers[name][-1]
        assert isinstance(answer, Accepted), answer
        return answer

    def refused(self, name: str, gateway: Gateway | None = None) -> Refused:
        gateway = gateway or self.gateway
        self.until(lambda: isinstance((gateway.answers.get(name) or [None])[-1], Refused))
        answer = gateway.answers[name][-1]
        assert isinstance(answer, Refused)
        return answer

    def close(self) -> None:
        self.role.stop(5.0)
        self.role.say_goodbye("over")
        for gateway in self.gateways:
            gateway.link.close()
