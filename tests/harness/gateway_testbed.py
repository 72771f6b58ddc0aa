"""A testbed for one gateway: real processes and sockets, a stand-in holder, synthetic runners.

The switchboard is the real one, in a thread of the test; beside it a holder that has taken the
term, answers snapshots and commands, and publishes events as the test directs.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import httpx

from bus.client import BusClient, Speaker, topic_of
from bus.links.reactor import PollReactor
from bus.links.transport import Link
from bus.process.clock import now, wall
from bus.process.endpoints import Endpoints
from bus.process.identity import new_boot
from bus.process.logs import Log
from bus.replica.state import ClusterState, apply, digest
from bus.switchboard.switchboard import Switchboard
from bus.wire.cards import ModelCard, ModelKind, NodeCard
from bus.wire.codec import decode
from bus.wire.errors import Refusal
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.instances import Instance, RankReady, Shard
from bus.wire.messages.commands import (
    Acknowledged,
    AddApiKey,
    AllowCloudFallback,
    CommandRefused,
    DeleteInstance,
    DeriveModel,
    ForgetDerived,
    PlaceModel,
    RemoveApiKey,
    RotateApiKey,
    SetTracing,
)
from bus.wire.messages.control import (
    AskCommand,
    AskEvents,
    AskSnapshot,
    EventsFound,
    Snapshot,
    TermHeartbeat,
)
from bus.wire.messages.events import (
    CloudFallbackAllowed,
    Event,
    EventBody,
    InstancePlaced,
    TermOpened,
    TracingSet,
)
from bus.wire.messages.readings import CardReading, DemandReading
from bus.wire.messages.tokens import DATA_PROTOCOL_MAX
from master.decisions.api_keys import decide_api_key
from master.decisions.derived import decide_derived
from tests.harness import forks
from tests.harness.counts import count
from tests.harness.forks import Fork
from tests.harness.ports import free_port

ROOT = Path(__file__).parents[2]
FORKED = (
    "tests.harness.gateway_process", "tests.harness.synthetic_runner", "gateway.http.app", "uvloop",
)  # fmt: skip
Program = subprocess.Popen[bytes] | Fork
NODE = NodeId("n1")
MODEL = ModelId("shoal-tiny")
USUAL = (MODEL, ModelId("org/other"))
"""The models that are here unless others are named."""


def eventually(check: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """The first true value of `check`, polled; fails with `what` when there is none in time."""
    give_up_at = now() + timeout_s
    pause = threading.Event()
    while True:
        found = check()
        if found:
            return found
        if now() >= give_up_at:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        pause.wait(0.01)


class Holder:
    """A stand-in for the master, in the testbed's thread; `do` reaches it from the test."""

    def __init__(
        self, endpoints: Endpoints, reactor: PollReactor, events: Sequence[Event] = ()
    ) -> None:
        self.reactor = reactor
        self.state = ClusterState()
        self.events = list(events)
        for event in events:
            self.state = apply(self.state, event)
        self.commands: list[Any] = []
        self.demands: list[DemandReading] = []
        self.refusal: Refusal | None = None
        speaker = Speaker(NODE, "master", new_boot())
        log = Log(node=NODE, process="master", level="error")
        self.bus = BusClient(speaker, endpoints, reactor, log, follow=False)
        self.bus.hear("reading.demand", lambda _t, e: self.demands.append(e.message))
        self.address = endpoints.candidate
        self.router = Link("router")
        self.router.bind(endpoints.candidate)
        reactor.watch(self.router, self.asked)
        if not events:
            self.happen(TermOpened(holder=NODE, counter=1))
        self.beat()
        reactor.every(0.2, self.beat)

    def happen(self, body: EventBody) -> None:
        event = Event(term=1, index=self.state.index + 1, at_s=wall(), body=body)
        self.events.append(event)
        self.state = apply(self.state, event)
        self.bus.publish(topic_of(event), event)

    def beat(self) -> None:
        beat = TermHeartbeat(
            holder=NODE,
            counter=1,
            index=self.state.index,
            digest=digest(self.state),
            addresses=(self.address,),
        )
        self.bus.publish("term", beat)

    def asked(self, frames: list[bytes]) -> None:
        question = decode(frames[-1]).message
        match question:
            case AskSnapshot():
                answer: Any = Snapshot(
                    term=1, index=self.state.index, state=self.state.model_dump()
                )
            case AskEvents():
                found = tuple(e for e in self.events if question.first <= e.index <= question.last)
                answer = EventsFound(events=found, complete=True)
            case AskCommand():
                answer = self.command(question.command)
            case _:
                return
        self.router.send(frames[0], self.bus.write(answer))

    def command(self, command: PlaceModel | DeleteInstance | Any) -> Any:
        self.commands.append(command)
        if self.refusal is not None:
            return CommandRefused(command_id=command.command_id, refusal=self.refusal)
        if isinstance(command, AddApiKey | RotateApiKey | RemoveApiKey):
            body = decide_api_key(command, self.state)
            if isinstance(body, Refusal):
                return CommandRefused(command_id=command.command_id, refusal=body)
            self.happen(body)
        if isinstance(command, DeriveModel | ForgetDerived):
            body = decide_derived(command, self.state, frozenset(USUAL))
            if isinstance(body, Refusal):
                return CommandRefused(command_id=command.command_id, refusal=body)
            self.happen(body)
        if isinstance(command, SetTracing):
            self.happen(TracingSet(ratio=command.ratio))
        if isinstance(command, AllowCloudFallback):
            self.happen(CloudFallbackAllowed(allowed=command.allowed))
        return Acknowledged(
            command_id=command.command_id,
            term=1,
            index=self.state.index,
            durability="local",
            instance=InstanceId("inst-1"),
            plan={} if isinstance(command, PlaceModel) and command.dry_run else None,
        )


def started(
    program: str, words: tuple[str, ...], cwd: Path, streams: tuple[int, int, int]
) -> Program:
    """Run a program of the harness, forked where that makes no difference (see `forks`). `streams`
    are descriptors, or subprocess.DEVNULL."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = f"tests.harness.{program}:main"
    with open(os.devnull, "r+b", 0) as null:
        stdin, stdout, stderr = (
            null.fileno() if one == subprocess.DEVNULL else one for one in streams
        )
        own = (stdin, stdout, stderr)
        return forks.started(FORKED, ROOT, run, words, env=env, cwd=cwd, streams=own)


class PlacedRunner(Protocol):
    """A runner as the cluster's state knows it."""

    address: str
    instance: str
    generation: int


class Runner:
    """A synthetic runner's process and what it has said. It ends when the test's process does."""

    patience_s = 20.0
    """A runner has to say so soon after its start that it is up."""

    def __init__(
        self, address: str, instance: str, generation: int, protocol: int = DATA_PROTOCOL_MAX
    ) -> None:
        self.address, self.instance, self.generation = address, instance, generation
        self.said: list[dict[str, Any]] = []
        self._pipe, self._rest = threading.Lock(), b""
        words = (address, instance, str(generation), str(protocol))
        given, self._stdin = os.pipe()
        stdout, said = os.pipe()
        self.process = started("synthetic_runner", words, ROOT, (given, said, 2))
        os.close(given)
        os.close(said)
        self._stdout = open(stdout, "rb", 0)  # noqa: SIM115 - closed by `end`
        os.set_blocking(stdout, False)
        threading.Thread(target=self._read, daemon=True).start()
        try:
            eventually(lambda: self.heard("up"), self.patience_s, "the synthetic runner is up")
        except BaseException:
            self.end()
            raise

    def heard(self, event: str) -> list[dict[str, Any]]:
        """What it has told of this kind: it tells of a request before it answers that."""
        self._take()
        return [one for one in list(self.said) if one["event"] == event]

    def asked_so_far(self, ask: Callable[[], httpx.Response]) -> int:
        """Make one more request that this runner answers; return how many it has heard, that one
        and all before it."""
        named = ask().headers["x-request-id"]
        eventually(
            lambda: any(named.endswith(one["request"]) for one in self.heard("submit")),
            5,
            "it is told",
        )
        return len(self.heard("submit"))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(10)
        with self._pipe:
            if not self._stdout.closed:
                os.close(self._stdin)
                self._stdout.close()

    def _read(self) -> None:
        """Take what it tells as it comes, so that it never has to wait."""
        ready = select.poll()
        ready.register(self._stdout.fileno(), select.POLLIN)
        while ready.poll(200) == [] or self._take():
            if self._stdout.closed:
                return

    def _take(self) -> bool:
        """Take what lies in the pipe; False at its end."""
        with self._pipe:
            if self._stdout.closed:
                return False
            data = self._stdout.read()
            *lines, self._rest = (self._rest + (data or b"")).split(b"\n")
            self.said.extend({**json.loads(line), "at": now()} for line in lines)
            return data != b""


class GatewayTestbed:
    """Everything around one gateway, and the gateway."""

    patience_s = 60.0
    """A gateway serves so long after its start."""

    def __init__(self, folder: str, **options: Any) -> None:
        self.endpoints = Endpoints(folder)
        self.folder = folder
        self.runners: list[Runner] = []
        self.port = free_port()
        self.scheme = "https" if "tls" in options else "http"
        """`tls` are the paths of a certificate and of its key."""
        self.trust: ssl.SSLContext | bool = True
        count("testbeds")
        self._start_thread()
        try:
            self.publish_card()
            self.gateway = self.start_gateway(**options)
        except BaseException:
            self._stop_thread()
            raise

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    # --- the holder's thread ----------------------------------------------------------------

    def restart_bus_and_holder(self) -> None:
        """Both end and come back: the holder with its log, the switchboard with nothing."""
        events = list(self.holder.events)
        self._stop_thread()
        self._start_thread(events)

    def _stop_thread(self) -> None:
        self.reactor.stop()
        self.thread.join(10)

    def _start_thread(self, events: Sequence[Event] = ()) -> None:
        up: queue.Queue[Any] = queue.Queue()

        def run() -> None:
            self.reactor = PollReactor()
            log = Log(node=NODE, process="bus", level="error")
            self.board = Switchboard(self.endpoints, self.reactor, log)
            self.holder = Holder(self.endpoints, self.reactor, events)
            up.put(True)
            self.reactor.run()
            self.holder.bus.close()
            self.holder.router.close()
            self.board.close()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        up.get(timeout=10)

    def do(self, action: Callable[[], Any]) -> Any:
        """Run in the holder's thread; its result."""
        done: queue.Queue[Any] = queue.Queue()
        self.reactor.call(lambda: done.put(action()))
        return done.get(timeout=10)

    def happen(self, body: EventBody) -> None:
        self.do(lambda: self.holder.happen(body))

    def publish_card(
        self,
        *names: str,
        context_tokens: int = 4096,
        embedding: tuple[str, ...] = (),
        reranking: tuple[str, ...] = (),
        thinking: bool = False,
    ) -> None:
        """Say which models are here: those named (or the usual ones), embedding models and
        rerankers."""
        kinds = {**dict.fromkeys(embedding, "embedding"), **dict.fromkeys(reranking, "reranker")}
        models = tuple(
            ModelCard(
                model=ModelId(name),
                path="/nowhere",
                family="qwen3",
                layers=2,
                weights_bytes=1000,
                size_bytes=1000,
                kv_bytes_per_token=10,
                context_tokens=context_tokens,
                vocabulary=2048,
                makes=cast(ModelKind, kinds.get(name, "text")),
                capabilities=_capabilities(thinking, kinds.get(name, "text")),
            )
            for name in (*(names or USUAL), *kinds)
        )
        self.publish_node(NODE, "testbed", models)

    def publish_node(self, node: NodeId, name: str, models: tuple[ModelCard, ...] = ()) -> None:
        """Make a node with these models known to all gateways."""
        card = NodeCard(
            node=node,
            name=name,
            platform="linux",
            cores=2,
            memory_bytes=10**9,
            backends=("mlx-cpu",),
            mlx_version="0",
            shoal_version="0",
            slots=1,
            models=models,
            announced_at_s=wall(),
        )
        self.do(lambda: self.holder.bus.publish(f"card.{node}", CardReading(card=card)))

    # --- runners ------------------------------------------------------------------------------

    def runner(
        self,
        instance: str = "inst-1",
        *,
        generation: int = 1,
        place: bool = True,
        protocol: int = DATA_PROTOCOL_MAX,
    ) -> Runner:
        """A synthetic runner that serves, and (when `place`) its instance in the state."""
        slot = f"{len(self.runners):02}"
        made = Runner(self.endpoints.runner(slot), instance, generation, protocol)
        self.runners.append(made)
        if place:
            self.place(made)
        return made

    def place(
        self, runner: PlacedRunner, model: ModelId = MODEL, context_tokens: int = 4096
    ) -> None:
        """Tell the cluster that an instance of the model is ready in this runner."""
        shard = Shard(rank=0, node=NODE, first_layer=0, last_layer=2, bytes_reserved=1000)
        rank = RankReady(rank=0, node=NODE, process="runner:00", addresses=(runner.address,), pid=1)
        instance = Instance(
            instance=InstanceId(runner.instance),
            model=model,
            shards=(shard,),
            generation=runner.generation,
            status="ready",
            context_tokens=context_tokens,
            keep_alive_s=300.0,
            ready=(rank,),
        )
        self.happen(InstancePlaced(instance=instance))

    # --- the gateway ---------------------------------------------------------------------------

    def start_gateway(self, **options: Any) -> Program:
        given = {
            "node": NODE,
            "node_name": "testbed",
            "endpoints": self.folder,
            "metrics_folder": f"{self.folder}/metrics",
            "port": self.port,
            "records_file": f"{self.folder}/records.sqlite",
            **options,
        }
        self.log = open(f"{self.folder}/gateway.log", "ab")  # noqa: SIM115 - closed by `close`
        streams = (subprocess.DEVNULL, self.log.fileno(), self.log.fileno())
        process = started("gateway_process", (json.dumps(given),), Path(self.folder), streams)
        try:
            eventually(
                self.is_ready, self.patience_s, f"the gateway serves; see {self.folder}/gateway.log"
            )
        except BaseException:
            process.kill()
            process.wait()
            self.log.close()
            raise
        return process

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2, verify=False).status_code == 200
        except httpx.HTTPError:
            return False

    def log_lines(self) -> list[dict[str, Any]]:
        lines = Path(f"{self.folder}/gateway.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def close(self) -> None:
        if self.gateway.poll() is None:
            self.gateway.send_signal(signal.SIGQUIT)
        try:
            self.gateway.wait(15)
        except subprocess.TimeoutExpired:
            self.gateway.kill()
            self.gateway.wait(5)
        for runner in self.runners:
            runner.end()
        self._stop_thread()
        self.log.close()


@contextmanager
def gateway_testbed(**options: Any) -> Iterator[GatewayTestbed]:
    """Start a testbed with a gateway that serves; all of it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="shoal-testbed-", dir="/tmp") as folder:
        made = GatewayTestbed(folder, **options)
        try:
            yield made
        finally:
            made.close()


def _capabilities(thinking: bool, kind: str) -> tuple[str, ...]:
    if kind != "text":
        return ("embedding",) if kind == "embedding" else ("rerank",)
    return ("completion", "thinking") if thinking else ("completion",)
