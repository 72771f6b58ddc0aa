"""Control-plane messages that are neither commands nor events: the term, snapshots, runner slots.

Pure. `Ask*` messages go from a DEALER to a ROUTER socket and get exactly one answer each. `Slot*`
messages pass between a worker and the runner slots of its own node.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from bus.wire.accelerators import DeviceShare
from bus.wire.ids import Boot, InstanceId, ModelId, NodeId
from bus.wire.instances import Phase, RankSeat
from bus.wire.kv import KvKind
from bus.wire.messages.collectives import CollectiveTest
from bus.wire.messages.commands import Command
from bus.wire.messages.events import Event, Fact, FactId
from bus.wire.messages.peers import HandedTerm
from bus.wire.messages.requests import DraftWeights, ModelKind, Speculate
from bus.wire.messages.weights import Quantizing
from bus.wire.messages.wire import Message

# --- the term ------------------------------------------------------------------------


class TermHeartbeat(Message):
    """The leader is alive: its term, the last index, a digest of the state at that index, and its
    candidate addresses, best first. Sent every 0.5 s; after 2 s of silence the term has lapsed.

    `voters`: the voters of its majority, empty without votes. A majority has all events up to and
    including `committed` on disk (0 without votes). `followers`: how many other candidates answered
    its heartbeats within the last 2 s. `handed`: the earlier term that its leader handed over to
    this leader; followers of that term change to this leader at once.
    """

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


# --- questions to the leader -----------------------------------------------------------


class AskSnapshot(Message):
    """Ask for the whole state."""

    kind: Literal["ask_snapshot"] = "ask_snapshot"


class AskEvents(Message):
    """Ask for the events first..last (inclusive), at most 1,000 at a time.

    `after_term`, if given, is the term of event first - 1 in the sender's log, with its leader. The
    events are returned only if the answering log has that same event (Raft's consistency check).
    """

    kind: Literal["ask_events"] = "ask_events"
    first: int
    last: int
    after_term: int | None = None
    after_holder: NodeId | None = None


class AskCommand(Message):
    """Ask the leader to execute a command."""

    kind: Literal["ask_command"] = "ask_command"
    command: Command


class TellFact(Message):
    """A fact (an event that the sender witnessed), to be written to the log. It is answered at
    once; the outbox then waits until the fact is in the log."""

    kind: Literal["tell_fact"] = "tell_fact"
    fact: Fact
    fact_id: FactId


class Snapshot(Message):
    """State at `index`, as `ClusterState.model_dump`, from the leader of `term`."""

    kind: Literal["snapshot"] = "snapshot"
    term: int
    index: int
    state: dict[str, Any]
    holder: NodeId | None = None


class EventsFound(Message):
    """The requested events, in order. `complete` False: some are too old, so ask for a snapshot.
    `term` and `holder` are those of the answering candidate."""

    kind: Literal["events_found"] = "events_found"
    events: tuple[Event, ...]
    complete: bool
    term: int | None = None
    holder: NodeId | None = None


class FactTaken(Message):
    """The fact is in the log, now or earlier."""

    kind: Literal["fact_taken"] = "fact_taken"
    fact_id: FactId


class NotHolder(Message):
    """The answering candidate is not the leader; repeat the question to the leader."""

    kind: Literal["not_holder"] = "not_holder"
    holder: NodeId | None = None


# --- worker and runner slots ---------------------------------------------------------


class GroupSpec(Message):
    """How the ranks of one generation (one attempt to load an instance) connect. `ranks` are in
    rank order; rank 0 is the lead, and in a pipeline the last stage. `secret` (hexadecimal) is the
    key of the HMAC that the first collective exchanges. If not all ranks have joined within
    `form_deadline_s`, the generation has failed. `coordinator` (JACCL only): the `ip:port` at which
    rank 0 listens."""

    sharding: Literal["pipeline", "tensor"]
    backend: Literal["ring", "jaccl"] = "ring"
    ranks: tuple[RankSeat, ...]
    secret: str
    form_deadline_s: float = 20.0
    coordinator: str = ""


FAST_SYNCH = "MLX_METAL_FAST_SYNCH"
"""The environment variable that turns on Metal's fast synchronisation in MLX. It is set before MLX
is imported."""


class RunnerSpec(Message):
    """All work of a runner slot: one rank of one generation (one attempt to load an instance).

    `addresses`: where its data ROUTER binds. `announced`: the addresses that others dial, in the
    same order (one may stand for several). `group` is None for one rank. With a `test` there is no
    model: the group tests its collectives. `makes`, `speculate`, `draft`: as in the card. `kv`: the
    format of the part of the KV cache that grows with the tokens. `quantizes`: make the new
    `model`, in the folder `into` that has all models, from the model in `path`. `metal_fast_synch`
    is set for MLX before it is imported. `adapters`: those to load; None: all beside the model. An
    empty parser is that of the model's chat template. `devices`: the part of `memory_limit_bytes`
    that is on GPUs. Times in seconds, sizes in bytes.
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
    makes: ModelKind = "text"
    kv: KvKind = "full"
    quantizes: Quantizing | None = None
    into: str = ""
    metal_fast_synch: bool = False
    adapters: tuple[str, ...] | None = None
    tool_parser: str = ""
    reasoning_parser: str = ""
    special_tokens_in_messages: bool = False
    speculate: Speculate | None = None
    draft: DraftWeights | None = None
    devices: tuple[DeviceShare, ...] = ()


class SlotHello(Message):
    """A report of a slot's runner: at its start (`phase` idle, no instance), then each second, and
    at once when its phase changes. A restarted worker finds its runners by these reports.

    `done_bytes` of `total_bytes`: the progress of loading. `open_requests`: requests not yet
    answered.
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
    """An order to a runner: refuse new work; end when no request is open, or after `deadline_s`.
    Requests that are still open then end with `model_unavailable` and `why`."""

    kind: Literal["slot_drain"] = "slot_drain"
    instance: InstanceId
    generation: int
    deadline_s: float
    why: str


class SlotEnded(Message):
    """The last message of a runner, sent before it exits: its exit code and the reason."""

    kind: Literal["slot_ended"] = "slot_ended"
    slot: str
    boot: Boot
    instance: InstanceId | None
    generation: int
    rank: int
    exit_code: int
    message: str


class SlotRefused(Message):
    """The worker refuses this runner, so the runner exits. `message` is the reason: it has nothing
    to load, its part of a model cannot be loaded, or the protocol versions differ."""

    kind: Literal["slot_refused"] = "slot_refused"
    message: str


class ProposerPlace(Message):
    """Tells a lead runner at which address the draft model of its card is ready: in another runner
    of its node, or on another node. `address` is empty if it is not ready, because of `why`."""

    kind: Literal["proposer_place"] = "proposer_place"
    instance: InstanceId
    generation: int
    model: ModelId
    node: NodeId | None = None
    proposer: InstanceId | None = None
    proposer_generation: int = 0
    address: str = ""
    why: str = ""


SlotTalk = Annotated[
    RunnerSpec | SlotHello | SlotDrain | SlotEnded | SlotRefused | ProposerPlace,
    Field(discriminator="kind"),
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
    """The result of a diagnosis. `method`: `py-spy` or `in-process`. `note`: why the better method,
    py-spy, was not used."""

    kind: Literal["diagnosis"] = "diagnosis"
    method: str
    note: str = ""
    content_type: str = "application/json"
    content: bytes = b""


class DiagnosisRefused(Message):
    """The diagnosis was refused, for this reason. `status`: the matching HTTP status."""

    kind: Literal["diagnosis_refused"] = "diagnosis_refused"
    status: int
    message: str


class AskRunner(Message):
    """Ask a runner for its own diagnostics (flight recorder, memory). The question goes through the
    runner's worker."""

    kind: Literal["ask_runner"] = "ask_runner"
    instance: InstanceId


class RunnerReport(Message):
    """A runner's report on itself, or its worker's report on an ended runner (`ended_at_s`).

    The worker's report says how long the runner had been silent. It has `stacks` (the content of a
    `Diagnosis`) if the worker took them when it fell silent, or if it was stuck and sent them
    itself.
    """

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
    """Ask a worker for the last reports on runners that have ended, and for its own reports on the
    running runners."""

    kind: Literal["ask_ended"] = "ask_ended"


class RunnersEnded(Message):
    """Reports on the last ended runners of this node, oldest first. `run`: the worker's reports on
    the running runners, which it does not ask, because they may be halted."""

    kind: Literal["runners_ended"] = "runners_ended"
    reports: tuple[RunnerReport, ...] = ()
    run: tuple[RunnerReport, ...] = ()


class StackSample(Message):
    """The stacks of a process's threads, sampled by the process itself: the fallback where ptrace
    is forbidden."""

    kind: Literal["stack_sample"] = "stack_sample"
    threads: tuple[dict[str, Any], ...]


class AskStacks(Message):
    """Ask a process for the stacks of its own threads."""

    kind: Literal["ask_stacks"] = "ask_stacks"
