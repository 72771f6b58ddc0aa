"""Control-plane talk that is neither command nor event: the term, snapshots, slots.

Pure. `Ask*` go DEALER -> ROUTER and get exactly one answer each; `Slot*` pass between a worker
and the runner slots of its own node.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from bus.wire.ids import Boot, InstanceId, ModelId, NodeId
from bus.wire.instances import RankSeat
from bus.wire.kv import KvKind
from bus.wire.messages.collectives import CollectiveTest
from bus.wire.messages.commands import Command
from bus.wire.messages.events import Event, Fact, FactId
from bus.wire.messages.peers import HandedTerm
from bus.wire.messages.weights import Quantizing
from bus.wire.messages.wire import Message

# --- the term ------------------------------------------------------------------------


class TermHeartbeat(Message):
    """The holder lives: its term, the last index, a digest of the state at that index, and
    where to ask (candidate addresses, best first). Every 0.5 s; silent for 2 s is lapsed.

    `voters` are those whose majority gave it the term, none where there are no voters; what is
    up to and including `committed` a majority of them has on disk (0 where there are none).
    `followers` is how many other candidates answered its heartbeats within a lapse. `handed` is the
    term that was handed on to it: who followed that one follows it at once."""

    kind: Literal["term_heartbeat"] = "term_heartbeat"
    holder: NodeId
    counter: int
    index: int
    digest: int
    addresses: tuple[str, ...]
    voters: tuple[NodeId, ...] = ()
    committed: int = 0
    followers: int = Field(default=0, ge=0)
    handed: HandedTerm | None = None


# --- asking the holder ---------------------------------------------------------------


class AskSnapshot(Message):
    """The whole state, please."""

    kind: Literal["ask_snapshot"] = "ask_snapshot"


class AskEvents(Message):
    """Events first..last (both included), at most 1,000 at a time.

    With `after_term` (the term, and its holder, of the asker's event first - 1) they are only
    found where that event is of the answerer's log too (Raft's consistency check)."""

    kind: Literal["ask_events"] = "ask_events"
    first: int
    last: int
    after_term: int | None = None
    after_holder: NodeId | None = None


class AskCommand(Message):
    """Do this."""

    kind: Literal["ask_command"] = "ask_command"
    command: Command


class TellFact(Message):
    """A fact to be indexed. Answered at once; the outbox waits for the index itself."""

    kind: Literal["tell_fact"] = "tell_fact"
    fact: Fact
    fact_id: FactId


class Snapshot(Message):
    """State at `index`, as `ClusterState.model_dump`, from the holder of `term`."""

    kind: Literal["snapshot"] = "snapshot"
    term: int
    index: int
    state: dict[str, Any]
    holder: NodeId | None = None


class EventsFound(Message):
    """The events asked for, in order; `complete` False when some are no longer kept, and a
    snapshot has to be asked for. `term` and `holder` are the answerer's."""

    kind: Literal["events_found"] = "events_found"
    events: tuple[Event, ...]
    complete: bool
    term: int | None = None
    holder: NodeId | None = None


class FactTaken(Message):
    """The fact is indexed (or was before)."""

    kind: Literal["fact_taken"] = "fact_taken"
    fact_id: FactId


class NotHolder(Message):
    """Ask elsewhere: this candidate does not hold the term."""

    kind: Literal["not_holder"] = "not_holder"
    holder: NodeId | None = None


# --- worker and runner slots ---------------------------------------------------------


class GroupSpec(Message):
    """How the ranks of one generation find each other. `ranks` are in rank order; rank 0 is
    the lead, and in a pipeline the last stage. `secret` (hexadecimal) is the key of the HMAC that
    the first collective exchanges. All ranks are joined within `form_deadline_s` or the
    generation has failed. `coordinator` (JACCL only) is the `ip:port` that rank 0 listens on."""

    sharding: Literal["pipeline", "tensor"]
    backend: Literal["ring", "jaccl"] = "ring"
    ranks: tuple[RankSeat, ...]
    secret: str
    form_deadline_s: float = 20.0
    coordinator: str = ""


FAST_SYNCH = "MLX_METAL_FAST_SYNCH"
"""The variable by which MLX is told of Metal's fast synchronisation, before it is imported."""


class RunnerSpec(Message):
    """What a slot is to be: one rank of one generation. Everything a runner reads.

    `addresses` are those its data ROUTER binds; `announced` what it tells others to dial for
    them, in the same order (an address may stand for several). `group` is None for one rank.
    With a `test` there is no model: the group tests its collectives. `makes` is the card's. `kv` is
    how KV that grows is held.
    `quantizes`: `model` is to be made, in the folder `into` of all models, of the one in `path`.
    `metal_fast_synch` is what MLX is told of that before it is imported. `adapters` are those that
    are loaded with the model; None: all that lie beside it. The parsers are the card's; empty: as
    the model's template says.
    Times in seconds, sizes in bytes.
    """

    kind: Literal["runner_spec"] = "runner_spec"
    instance: InstanceId
    generation: int
    rank: int
    size: int
    model: ModelId
    path: str
    dtype: str
    first_layer: int
    last_layer: int
    context_tokens: int
    addresses: tuple[str, ...]
    announced: tuple[tuple[str, ...], ...] = ()
    memory_limit_bytes: int
    max_rows: int = 32
    max_waiting: int = 8
    prefill_share: float = 0.7
    prefix_cache_bytes: int = 512 << 20
    default_max_tokens: int = 4096
    thinking: bool = False
    load_deadline_s: float = 300.0
    drop_idle_s: float = 60.0
    group: GroupSpec | None = None
    test: CollectiveTest | None = None
    makes: Literal["text", "embedding"] = "text"
    kv: KvKind = "full"
    quantizes: Quantizing | None = None
    into: str = ""
    metal_fast_synch: bool = False
    adapters: tuple[str, ...] | None = None
    tool_parser: str = ""
    reasoning_parser: str = ""
    special_tokens_in_messages: bool = False


Phase = Literal["idle", "loading", "warming", "ready", "draining", "ended"]


class SlotHello(Message):
    """A slot's runner speaks: at its start (`phase` idle, no instance), each second after,
    and at once when its phase changes. A worker that restarts finds its runners by it.

    `done_bytes` of `total_bytes` tell how far loading is. `open_requests` counts what it owes.
    """

    kind: Literal["slot_hello"] = "slot_hello"
    slot: str
    pid: int
    boot: Boot
    protocol_min: int
    protocol_max: int
    phase: Phase
    instance: InstanceId | None = None
    generation: int = 0
    rank: int = 0
    addresses: tuple[str, ...] = ()
    done_bytes: int = 0
    total_bytes: int = 0
    open_requests: int = 0
    step: int = 0
    message: str = ""


class SlotDrain(Message):
    """Refuse new work, end when empty or after `deadline_s`; open requests then end with
    `model_unavailable` and `why`."""

    kind: Literal["slot_drain"] = "slot_drain"
    instance: InstanceId
    generation: int
    deadline_s: float
    why: str


class SlotEnded(Message):
    """A runner's last word: its exit code and why, sent before it exits."""

    kind: Literal["slot_ended"] = "slot_ended"
    slot: str
    boot: Boot
    instance: InstanceId | None
    generation: int
    rank: int
    exit_code: int
    message: str


class SlotRefused(Message):
    """The worker has nothing for this runner (silent too long, unknown generation, protocol
    without overlap): it ends itself."""

    kind: Literal["slot_refused"] = "slot_refused"
    message: str


SlotTalk = Annotated[
    RunnerSpec | SlotHello | SlotDrain | SlotEnded | SlotRefused, Field(discriminator="kind")
]


# --- questions between services of one node ------------------------------------------


class AskDiagnosis(Message):
    """Ask a node's telemetry for stacks or a profile of one supervised process.

    `format` speedscope or flamegraph applies to profiles; `seconds` 0.1..30.
    """

    kind: Literal["ask_diagnosis"] = "ask_diagnosis"
    want: Literal["stacks", "profile", "capability"]
    process: str = ""
    seconds: float = Field(default=2.0, ge=0.1, le=30.0)
    rate_hz: int = Field(default=100, ge=1, le=1000)
    format: Literal["speedscope", "flamegraph"] = "speedscope"


class Diagnosis(Message):
    """What was found. `method` says how (`py-spy` or `in-process`), `note` why not better."""

    kind: Literal["diagnosis"] = "diagnosis"
    method: str
    note: str = ""
    content_type: str = "application/json"
    content: bytes = b""


class DiagnosisRefused(Message):
    """No diagnosis, and why. `status` is the HTTP status that fits."""

    kind: Literal["diagnosis_refused"] = "diagnosis_refused"
    status: int
    message: str


class AskRunner(Message):
    """Ask a runner for its own diagnostics (flight recorder, memory), on its data socket's
    control twin, through its worker."""

    kind: Literal["ask_runner"] = "ask_runner"
    instance: InstanceId


class RunnerReport(Message):
    """A runner's account of itself, or its worker's of it, as of one that has ended (`ended_at_s`).
    That tells how long the runner had said nothing then, and has `stacks` (the content of a
    `Diagnosis`) where it fell silent and was looked into, or was stuck and told them itself."""

    kind: Literal["runner_report"] = "runner_report"
    slot: str
    pid: int
    instance: InstanceId | None
    generation: int
    phase: Phase
    recorder: tuple[dict[str, Any], ...] = ()
    memory: dict[str, int] = {}
    facts: dict[str, Any] = {}
    ended_at_s: float | None = None
    exit_code: int | None = None
    message: str = ""
    rank: int = 0
    step: int = 0
    silent_s: float = 0.0
    stacks: bytes = b""


class AskEnded(Message):
    """Ask a worker for the last accounts of runners that have ended, and for its own of others."""

    kind: Literal["ask_ended"] = "ask_ended"


class RunnersEnded(Message):
    """The runners that ended last on this node, the oldest first; and those that `run`, as far as
    their worker knows: they are not asked, and may be halted."""

    kind: Literal["runners_ended"] = "runners_ended"
    reports: tuple[RunnerReport, ...] = ()
    run: tuple[RunnerReport, ...] = ()


class StackSample(Message):
    """In-process stacks of one's own threads: the fallback where ptrace is forbidden."""

    kind: Literal["stack_sample"] = "stack_sample"
    threads: tuple[dict[str, Any], ...]


class AskStacks(Message):
    """Sample your own threads."""

    kind: Literal["ask_stacks"] = "ask_stacks"
