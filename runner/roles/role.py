"""Talks to the engine's thread and the other ranks: what all roles of a runner share.

The shell (`runner.service`) communicates with the worker and knows the phase. The role (lead,
follower, embedding, quantising, collective test) has the engine and its requests. A role never ends
the process itself. It asks its `RoleHost` to do so, with the exit code for an engine that failed or
is stuck, or for lost ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from bus.models.kv import KvLimits
from bus.models.tasks import CommandEngine
from bus.process.clock import CoreWaits, MachineWaits, core_share, runnable_now, wall, working_tasks
from bus.process.installation import Environment
from bus.process.logs import Log
from bus.service import Shell, place_of
from bus.wire.errors import FailReason
from bus.wire.ids import RequestId
from bus.wire.instances import Phase
from bus.wire.kv import RunSought
from bus.wire.messages.collectives import CollectiveReading
from bus.wire.messages.control import GroupSpec, ProposerPlace, RunnerSpec
from bus.wire.messages.readings import RunnerReading
from bus.wire.messages.requests import Speculate
from bus.wire.messages.tokens import Cancel
from bus.wire.messages.wire import Message
from runner import lifecycle
from runner.embedding import Embedder, InputsReader, PairsReader
from runner.engine import (
    Engine,
    EngineStatus,
    FollowingEngine,
    LoadProgress,
    Maker,
)
from runner.group.collectives import Exchanges
from runner.group.group_config import CannotForm, told_error
from runner.group.lockstep import RankContext, SharedPlan
from runner.group.plan_channel import open_channel
from runner.group.rank_channel import PlanChannel
from runner.llama import SentWorks
from runner.recorder import FlightRecorder
from runner.roles import model_thread
from runner.roles.model_thread import Watchdog
from runner.schedule import SchedulerLoad
from runner.serving import OpenRequest, RequestServer, Tap
from runner.text import EngineTokenizer, RendererNotReady, TextWorks

Progressed = Callable[[LoadProgress], None]
ENGINE_THREAD, TEXT_THREAD = "engine", "text"
NO_PEER = b""
"""Stands for the gateway process in messages that no gateway has sent, such as the cancellation of
a request by the worker."""


@dataclass(frozen=True, slots=True)
class Factories:
    """Factories of a role's parts. `load_engine`, `load_follower`, `load_embedder`, `open_maker`
    (raises NotMade) and `open_exchanges` (for a test) are called in the engine's thread.
    `load_text`, `load_inputs` (of an embedding model or a reranker; given the engine's own
    tokenizer, if it has one) and `load_sent_text` (of a GGUF model) are called in the text thread.
    `llama_server` is the command that starts it; empty if there is none. `command_engine` returns
    the program of `engines.toml` with a name (raises ConfigError), and `environment` the
    environment of packages with a name; None if there is none. They are called in the engine's
    thread. `form_group` (group, own rank, seconds; raises CannotForm) and `prepare` are called in
    the main thread; `prepare` at most once and first: it may import what the others need, except
    MLX. `vocabulary_digest` returns a digest of the model's tokens, empty if they cannot be read;
    called in any thread. `engine_bytes` returns MLX's peak memory, None if unknown. `speculate`,
    `parity` and `kv_limits` (for KV on disk) are the operator's settings."""

    load_engine: Callable[[RunnerSpec, RankContext | None, Progressed], Engine]
    load_follower: Callable[[RunnerSpec, RankContext, Progressed], FollowingEngine]
    load_text: Callable[[RunnerSpec], TextWorks]
    load_embedder: Callable[[RunnerSpec, Progressed], Embedder]
    load_inputs: Callable[[RunnerSpec, EngineTokenizer | None], InputsReader | PairsReader]
    form_group: Callable[[GroupSpec, int, float], None]
    open_exchanges: Callable[[RunnerSpec, RankContext], Exchanges]
    open_maker: Callable[[RunnerSpec], Maker]
    load_sent_text: Callable[[RunnerSpec], SentWorks] | None = None
    llama_server: tuple[str, ...] = ()
    command_engine: Callable[[str], CommandEngine | None] = lambda _name: None
    environment: Callable[[str], Environment | None] = lambda _name: None
    prepare: Callable[[], None] = lambda: None
    vocabulary_digest: Callable[[RunnerSpec], str] = lambda _spec: ""
    engine_bytes: Callable[[], int | None] = lambda: None
    speculate: Speculate = "off"
    parity: Literal["exact", "fast"] = "exact"
    kv_limits: KvLimits | None = None


class RoleHost(Protocol):
    """The part of the shell that a role may use. Called from the main thread."""

    @property
    def phase(self) -> Phase: ...

    def signal(self, signal: lifecycle.Signal) -> None:
        """Report a signal; `runner.lifecycle.NEXT` says how the phase changes."""
        ...

    def leave(self, code: int, reason: FailReason, message: str) -> None:
        """End the process soon, with a code of `runner.lifecycle`; the first call decides."""
        ...

    def tell(self, message: Message) -> None:
        """Send a message to the worker of this node."""
        ...


@dataclass(frozen=True, slots=True)
class RoleParts:
    """The objects that every role gets when it is made. `tap` is called with the entries of each
    message that is sent to a gateway, while the topic "token" is `wanted`."""

    spec: RunnerSpec
    host: RoleHost
    shell: Shell
    factories: Factories
    recorder: FlightRecorder
    tap: Tap = lambda _step, _entries: None
    wanted: Collection[str] = ()


class Role:
    """One rank: its engine's thread, and its channel to the others (None for a single runner), as
    their `PlanListener`.

    Called from the main thread only. `begin` comes first, `stop` last; after `fail_all` nothing is
    served. `addresses` are the sockets for gateways; only a role that serves has any. `described`
    are the facts of the loaded model in a diagnosis. `status` is the engine's; its thread keeps
    writing it.
    """

    def __init__(self, parts: RoleParts, loop: model_thread.EngineLoop) -> None:
        self.addresses: tuple[str, ...] = ()
        self.described: Mapping[str, str | int | float | bool] = {}
        self.status = loop.status
        self._spec = spec = parts.spec
        self._host = parts.host
        self._speaker = parts.shell.speaker
        self._reactor = reactor = parts.shell.reactor
        self._log = parts.shell.log
        self._factories = parts.factories
        self._recorder = parts.recorder
        self._recorder.memory = partial(_memory_told, loop.status, spec)
        is_alone = spec.size == 1 and spec.rank == 0 and spec.test is None
        self._channel: PlanChannel | None = None
        if not is_alone:
            self._channel = open_channel(spec, parts.shell, self)
        self._thread = model_thread.ModelThread(
            loop, lambda news: reactor.call(lambda: self._take_news(news))
        )

    @property
    def open_requests(self) -> int:
        return 0

    @property
    def is_empty(self) -> bool:
        """Return whether a draining runner may end now."""
        return self.open_requests == 0

    def begin(self) -> None:
        """Wait until all ranks have said hello; a single runner starts to load immediately."""
        if self._channel is None:
            self._start()
        else:
            self._recorder.note(wall(), "connect_group", ranks=self._spec.size)

    def watch(self, now: float) -> None:
        """Check for other ranks that are silent and threads that are stuck; end the runner if there
        are any. Called four times a second; `now` is a monotonic instant."""
        if self._channel is not None:
            self._channel.step = self.status.steps_done

    def entered(self, phase: Phase) -> None: ...

    def reading(self, now: float) -> RunnerReading | CollectiveReading | None:
        """Return the current reading for the worker; None if this rank reports none."""
        return None

    def fail_all(self, reason: FailReason, message: str) -> None:
        """End every open request with this reason and message, and tell the other ranks that the
        runner ends."""
        if self._channel is not None:
            self._channel.end(message)

    def say_goodbye(self, message: str) -> None:
        """Tell the gateways that this runner ends, after the last entries of its requests."""

    def stop(self, timeout_s: float) -> None:
        """Let the engine finish its step for at most `timeout_s`, then close the connections to
        other ranks and gateways."""
        self._thread.stop(timeout_s)
        if self._channel is not None:
            self._channel.close()

    # --- from the other ranks --------------------------------------------------------------

    @property
    def _others(self) -> PlanChannel:
        """Return the channel of a rank in a group."""
        assert self._channel is not None, "this rank is not in a group"
        return self._channel

    def form(self) -> None:
        """Join the ring of ranks, then load the model or run the test. End the runner if the group
        does not form."""
        group = self._others.group
        try:
            # a system's timer cannot be told of time that does not count: it is allowed for before
            share = core_share(runnable_now(), os.cpu_count() or 1)
            self._factories.form_group(group, self._spec.rank, group.form_deadline_s / share)
        except CannotForm as error:
            self._host.leave(lifecycle.GROUP_LOST, "model_unavailable", str(error))
            return
        self._others.formed()
        self._start()

    def plan(self, shared: SharedPlan) -> None: ...

    def lost(self, what: str, is_final: bool) -> None:
        """End the runner, because another rank is lost. `is_final`: a new attempt cannot help."""
        self._log.error("the group failed", why=what)
        code = lifecycle.LOAD_FAILED if is_final else lifecycle.GROUP_LOST
        self._host.leave(code, "runner_lost", what)

    def ended(self, why: str) -> None:
        """End the runner normally, because the lead has ended."""
        self._host.leave(lifecycle.STOPPED, "model_unavailable", f"the lead stopped: {why}")

    # --- the engine's thread ---------------------------------------------------------------

    def _start(self) -> None:
        """Start the work of the engine's thread: loading the model, or the test."""
        if self._spec.test is None:
            self._recorder.note(wall(), "load_model", model=self._spec.model)
        self._thread.start()

    def _take_news(self, news: model_thread.ThreadNews) -> None:
        """Process a report from the engine's thread. An error that a lost rank caused is reported
        as a lost rank."""
        match news:
            case model_thread.Loaded():
                if self._host.phase == "loading":
                    if self._channel is not None:
                        self._channel.ready = True
                    self._loaded()
            case model_thread.LoadFailed(message, _, imports):
                self._recorder.note(wall(), "error", message=message)
                why = told_error(message, self._spec.group, self._spec.rank)
                self._log.error("loading failed", error=message, why=why)
                own = lifecycle.LOAD_FAILED if imports else lifecycle.CANNOT_IMPORT
                code = _code_of(message, own)
                self._host.leave(code, "model_unavailable", why)
            case model_thread.Broken(message, _, story):
                self._recorder.note(wall(), "error", message=message)
                why = told_error(message, self._spec.group, self._spec.rank)
                self._log.critical("the engine raised an exception", error=story, why=why)
                code = _code_of(message, lifecycle.ENGINE_ERROR)
                self._host.leave(code, "runner_lost", f"the engine failed: {why}")

    def _loaded(self) -> None:
        """Signal that this rank is ready: all ranks have loaded and agreed, or met for a test."""
        self._host.signal("loaded")
        self._host.signal("warmed")
        self._log.info("ready", rank=self._spec.rank)

    def _note_kv(self, held: str) -> None:
        """Log in which precision KV is held, if that differs from the spec in some layers."""
        if held and held != self._spec.kv:
            why = (
                "the other layers keep no KV, have head sizes that no group divides, or "
                "need full precision"
            )
            self._log.warning(
                "KV is kept in full precision", asked=self._spec.kv, held=held, why=why
            )

    def _stuck(self, what: str, *, thread: str = ENGINE_THREAD) -> None:
        """End the runner, because a thread has exceeded its deadline."""
        self._log.critical("the engine is stuck", what=what, thread=thread, at=place_of(thread))
        self._host.leave(lifecycle.WEDGED, "runner_lost", what)


class ServingRole(Role):
    """A role that answers requests of gateways. Its `RequestServer` accepts the requests and passes
    them to a responder, which the subclass makes."""

    def __init__(self, parts: RoleParts, loop: model_thread.EngineLoop) -> None:
        super().__init__(parts, loop)
        self._server = RequestServer(
            parts.spec,
            parts.shell,
            recorder=parts.recorder,
            tap=parts.tap,
            wanted=parts.wanted,
        )
        self.addresses = self._server.addresses

    @property
    def open_requests(self) -> int:
        return len(self._server.owed)

    def cancel(self, request_id: RequestId) -> bool:
        """End a request as if its client had disconnected; return False if it is not open."""
        if request_id not in self._server.owed:
            return False
        self._server.act_on(NO_PEER, Cancel(request_id, "client"), self._reactor.now())
        return True

    def sought(self, answer: RunSought) -> None: ...

    def go_to_proposer(self, place: ProposerPlace) -> None: ...

    def entered(self, phase: Phase) -> None:
        """Accept or refuse requests according to the phase."""
        self._server.phase = phase

    def watch(self, now: float) -> None:
        """Drop gateways that are silent, and end requests that are past their deadline."""
        self._server.watch(now)
        super().watch(now)

    def fail_all(self, reason: FailReason, message: str) -> None:
        self._server.fail_all(reason, message)
        super().fail_all(reason, message)

    def say_goodbye(self, message: str) -> None:
        self._server.close(message)


def load_of(
    requests: Mapping[RequestId, OpenRequest], at_work: Collection[RequestId]
) -> SchedulerLoad:
    """Return the numbers of running and of waiting requests, and the most urgent priority among
    each. `at_work` are the requests that an engine process computes."""
    running: list[int] = []
    waiting: list[int] = []
    for request_id, request in requests.items():
        priorities = running if request_id in at_work else waiting
        priorities.append(request.request.priority)
    best, served = min(waiting, default=None), min(running, default=None)
    return SchedulerLoad(len(running), len(waiting), best, served)


def leave_without_text(host: RoleHost, log: Log, error: Exception | None) -> None:
    """End the runner, because a model's text files could not be opened, or because the process that
    opens them was not ready (a retry may help)."""
    if isinstance(error, RendererNotReady):
        log.error("the process that renders chat templates was not ready in time", error=str(error))
        host.leave(lifecycle.WEDGED, "model_unavailable", str(error))
        return
    log.error("the tokenizer could not be loaded", error=str(error))
    host.leave(lifecycle.LOAD_FAILED, "model_unavailable", str(error))


def watchdog(
    spec: RunnerSpec, owes_since: Callable[[], float | None], thread: str = ENGINE_THREAD
) -> Watchdog:
    """Return the watchdog of a thread and of the threads that libraries started for it. It does not
    count waits for a core. In a group these include the waits of all threads of the machine,
    because this rank waits for other ranks, and some may be on this machine."""
    waits = CoreWaits(working_tasks(thread))
    if spec.size == 1:
        return Watchdog(owes_since, waits)
    machine = MachineWaits()
    return Watchdog(owes_since, lambda: max(waits(), machine()))


def note_steps(recorder: FlightRecorder, status: EngineStatus, channel: PlanChannel | None) -> None:
    """Make the flight recorder follow the engine's steps and, in a group, its part of the work."""
    engine: dict[str, int | str] = {}
    if channel is not None:
        engine = {"begun": status.steps_begun, "engine": channel.context.spans.part}
    recorder.stepped(wall(), status.steps_done, **engine)


def _memory_told(status: EngineStatus, spec: RunnerSpec) -> dict[str, int]:
    """Return the memory facts for the flight recorder; empty before a model uses memory."""
    memory = status.memory
    if not memory.peak_bytes:
        return {}
    return {
        "active_bytes": memory.active_bytes,
        "cache_bytes": memory.cache_bytes,
        "peak_bytes": memory.peak_bytes,
        "limit_bytes": spec.memory_limit_bytes,
    }


def _code_of(message: str, own: int) -> int:
    return lifecycle.GROUP_LOST if lifecycle.lost_peer(message) else own
