"""Readings are measurements. The latest reading wins. Readings are never part of the cluster's
state.

Pure. Each is published retained on `reading.<kind>.<node>[.<process>]` with a TTL.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.cards import ModelCard, NodeCard
from bus.wire.ids import CommandId, InstanceId, ModelId, NodeId
from bus.wire.instances import Phase
from bus.wire.messages.requests import Drafter, DrafterCount, ProposalCost, ProposerUse
from bus.wire.messages.wire import Message


class ProcessReading(Message):
    """One process that supervisord runs. `cpu_s`: user and system time since its start."""

    name: str
    pid: int
    status: str
    cpu_s: float
    cpu_ratio: float
    resident_bytes: int
    threads: int
    uptime_s: float
    description: str = ""


class HealthFinding(Message):
    """A problem of `node` that an operator should know about, with a remedy.

    `node` is the affected node: a node's telemetry reports on itself and on silent peers. `code` is
    stable and fit for an alert rule.
    """

    node: NodeId
    level: Literal["warn", "error"]
    code: str
    message: str
    remediation: str


class ThunderboltReading(Message):
    """A Mac's Thunderbolt ports: the domains of its own buses, and of the buses of other Macs at
    the other ends of its cables. `bridged`: the Thunderbolt Bridge joins its ports."""

    bridged: bool
    domains: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()


class NodeReading(Message):
    """A node's memory, processor, disk and processes. Sent every second on
    change, else every two seconds.

    `cpu_ratio` is 0..1 over all cores; the one of a process counts cores (2.0 is two of them).
    `findings`: worst first; a node without a finding about itself is healthy. Only Macs report
    `thunderbolt`, checked once a minute, and `wired_bytes`, memory that can't be paged out, checked
    every second.
    """

    kind: Literal["node_reading"] = "node_reading"
    node: NodeId
    memory_total_bytes: int
    memory_available_bytes: int
    cpu_ratio: float
    load_1m: float
    disk_total_bytes: int
    disk_free_bytes: int
    processes: tuple[ProcessReading, ...] = ()
    findings: tuple[HealthFinding, ...] = ()
    measured_at_s: float
    thunderbolt: ThunderboltReading | None = None
    wired_bytes: int | None = None


class MeasuredLink(Message):
    """The link to one peer, as this node measured it at `host`. `latency_s`: one way, for a small
    message of MLX's ring; `round_trip_s`: of an echo over the bus. `at_least`: the link may carry
    more, because the network was not the bottleneck. `age_s`: the age of the measured bandwidth."""

    peer: NodeId
    latency_s: float = Field(gt=0)
    bytes_per_s: float = Field(gt=0)
    host: str = ""
    at_least: bool = False
    round_trip_s: float = 0.0
    age_s: float = 0.0
    latency_age_s: float = 0.0


class RestingLink(Message):
    """A peer to which the link is not measured now. `new`: the link was never measured.
    `busy_here`, `busy_there`: this node or the peer computes, loads or fetches, which would
    distort the measurement. `unanswered`: none of the peer's addresses answers."""

    peer: NodeId
    why: Literal["new", "busy_here", "busy_there", "unanswered"]


class LinkReading(Message):
    """A node's links, measured while idle: one entry for each address at which a peer answered.
    `latency_every_s` and `bandwidth_every_s`: how often an idle link is measured; 0: this node does
    not measure. `resting`: peers that are measured less often."""

    kind: Literal["link_reading"] = "link_reading"
    node: NodeId
    links: tuple[MeasuredLink, ...]
    measured_at_s: float
    latency_every_s: float = 0.0
    bandwidth_every_s: float = 0.0
    resting: tuple[RestingLink, ...] = ()


class RunnerReading(Message):
    """A runner's queue, speed and memory, sent every second, every two seconds without requests.
    Ratios are 0..1; `per_s` figures cover the time since the last reading. Every rank of a group
    has one; only the lead (`rank` 0) reports requests, tokens and KV.

    `best_waiting_priority`: the smallest of the waiting rows; `best_running_priority`: of the
    running rows. `last_used_ago_s`: since a request was last open. `kv`: its layers' KV format:
    "full", "8bit", or "8bit in 4 of 24 layers"; empty if unknown. Measured memory: `active_bytes`,
    `cache_bytes` (freed but retained), `process_bytes`. `limit_bytes`: its reservation.
    `memory_ends`: rows that ended because memory ran short. `found`: notes on template and
    tokenizer. `row_tokens_per_s`: the measured speed of a row that decodes alone; 0: not measured.
    `kv_disk_hits`: prompts that started from KV on disk. `kv_moved_runs`: runs of KV copied from
    other nodes; `kv_moves_dearer`: not copied, because computing was expected to be faster.
    `proposer`: its use of a draft model in another runner; None: its card names none. `drafters`:
    its verified drafts, by drafter; `proposals`: the cost of those of drafters with a network.
    """

    kind: Literal["runner_reading"] = "runner_reading"
    node: NodeId
    process: str
    instance: InstanceId | None
    model: ModelId | None
    generation: int
    phase: Phase
    running: int
    waiting: int
    max_running: int
    max_waiting: int
    best_waiting_priority: int | None
    prompt_tokens: int
    generation_tokens: int
    prompt_tokens_per_s: float
    generation_tokens_per_s: float
    kv_bytes: int
    kv_limit_bytes: int
    prefix_bytes: int
    prefix_hits: int
    prefix_hit_tokens: int
    preemptions: int
    active_bytes: int
    peak_bytes: int
    step: int
    step_ms: float
    last_used_ago_s: float
    done_bytes: int = 0
    total_bytes: int = 0
    rank: int = 0
    best_running_priority: int | None = None
    kv: str = ""
    cache_bytes: int = 0
    limit_bytes: int = 0
    memory_ends: int = 0
    found: dict[str, str] = {}
    process_bytes: int = 0
    row_tokens_per_s: float = 0.0
    kv_disk_hits: int = 0
    kv_disk_hit_tokens: int = 0
    kv_disk_read_bytes: int = 0
    kv_disk_written_bytes: int = 0
    kv_moved_runs: int = 0
    kv_moved_bytes: int = 0
    kv_moves_dearer: int = 0
    kv_moves_failed: int = 0
    proposer: ProposerUse | None = None
    drafters: dict[Drafter, DrafterCount] = {}
    proposals: dict[Drafter, ProposalCost] = {}


class ClassDemand(Message):
    """The number of requests of one priority that wait for a model."""

    priority: int
    waiting: int
    oldest_s: float


class ModelDemand(Message):
    """The requests at a gateway that wait for a model that is not ready. `classes` counts them by
    priority."""

    model: ModelId
    waiting: int
    best_priority: int
    oldest_s: float
    classes: tuple[ClassDemand, ...] = ()


class DemandReading(Message):
    """The requests at a gateway process that wait for models; the leader loads models for them."""

    kind: Literal["demand_reading"] = "demand_reading"
    node: NodeId
    process: str
    models: tuple[ModelDemand, ...] = ()


FetchPhase = Literal["asking", "staging", "fetching", "checking", "publishing", "done", "failed"]


class FetchReading(Message):
    """The progress of copying a model's files from other nodes to this node's disk. `sources`: the
    nodes that send them now. `bytes_per_s`: over the last 5 s. `message`: why it failed."""

    model: ModelId
    phase: FetchPhase
    done_bytes: int
    total_bytes: int
    bytes_per_s: float
    sources: tuple[NodeId, ...] = ()
    message: str = ""


class WeightsReading(Message):
    """The models that a node copies from others. Sent every second during a copy, and on change."""

    kind: Literal["weights_reading"] = "weights_reading"
    node: NodeId
    fetches: tuple[FetchReading, ...] = ()


PullPhase = Literal[
    "waiting",
    "listing",
    "copying",
    "fetching",
    "checking",
    "publishing",
    "done",
    "failed",
]
PullRefusal = Literal[
    "bad_name",
    "offline",
    "unauthorized",
    "gated",
    "not_found",
    "no_revision",
    "rate_limited",
    "unreachable",
    "unfit",
    "conflict",
    "disk_full",
    "no_giver",
    "too_large",
    "spoilt",
    "changed",
    "busy",
    "paused",
    "cancelled",
    "broken",
]
"""Why a pull (a model's download) failed. `unfit`: the files are not a model that can run.
`no_giver`: only other nodes were allowed as sources, and none offers the model. `too_large`: no
nodes of the cluster could hold it in memory. `changed`: the hub's files differ from its list.
`paused` and `cancelled`: a user ended the pull. `broken`: this node failed for its own reason."""


class PullForecast(Message):
    """The known properties of a pulled model before its weights arrive. `card`: the model's card,
    made from its configuration and file sizes; None if that failed (`why`) or if other nodes have
    the model. `lacking_bytes`: still to be downloaded, to a disk with `disk_free_bytes`.
    `no_speed`: why the card allows no prediction of speed; empty: it does."""

    card: ModelCard | None = None
    why: str = ""
    lacking_bytes: int = Field(default=0, ge=0)
    disk_free_bytes: int = Field(default=0, ge=0)
    no_speed: str = ""


class PullClaim(Message):
    """A node's claim, made `at_s` by its wall clock, to ask `hub` for a model's newest revision for
    all nodes. `fetches`: it has begun the download. `gives`: other nodes can copy from it. They
    wait for the best claim: one with `fetches` wins, then the older one, then the smaller node
    id."""

    at_s: float
    hub: str = Field(max_length=2048)
    fetches: bool = False
    gives: bool = True


class PullState(Message):
    """The progress of a model's pull to a node's disk. `revision`: the commit, once known. `digest`
    identifies exactly these files. `bytes_per_s`: over the last 5 s. `received_bytes`: from the
    network in this attempt. `copying`: it comes from `sources`, nodes that have it. `note`: why it
    waits, if it does. `questions`: the ids of the waiting clients' questions. A failure has
    `reason` and `message`. `forecast`: present while clients hold the pull back before its
    download. `claim`: present from before the first weights are requested until the pull fails or
    becomes a copy. A pull that waits for another node's pull has the figures of that pull.
    `background`: the node's disk has a record of the pull, so that it continues without clients and
    after a restart. `layers`: only these layers [first, last) are pulled. `choice`: which
    quantisation of a GGUF repository is pulled, and why."""

    model: ModelId
    phase: PullPhase
    hub: str = ""
    revision: str = ""
    digest: str = ""
    files: int = Field(default=0, ge=0)
    done_bytes: int = Field(default=0, ge=0)
    total_bytes: int = Field(default=0, ge=0)
    received_bytes: int = Field(default=0, ge=0)
    bytes_per_s: float = 0.0
    sources: tuple[NodeId, ...] = ()
    questions: tuple[str, ...] = ()
    note: str = ""
    reason: PullRefusal | None = None
    message: str = ""
    retry_after_s: float | None = None
    forecast: PullForecast | None = None
    claim: PullClaim | None = None
    background: bool = False
    layers: tuple[int, int] | None = None
    choice: str = ""


class PullReading(Message):
    """The models that a node pulls, or pulled a moment ago. Sent twice a second during a pull, and
    on change."""

    kind: Literal["pull_reading"] = "pull_reading"
    node: NodeId
    pulls: tuple[PullState, ...] = ()


class UndoneChange(Message):
    """A change that was rolled back, because a node's new log lacks it; or an instance that was
    unloaded for the same reason. `what`: the kind of the event; `about`: its subject, for people;
    `at_s`: when it was rolled back, by the wall clock."""

    what: str
    about: str
    at_s: float
    instance: InstanceId | None = None
    command_id: CommandId | None = None


class UndoneReading(Message):
    """The changes that were rolled back at a node since its master started, oldest first, at most
    100."""

    kind: Literal["undone_reading"] = "undone_reading"
    node: NodeId
    changes: tuple[UndoneChange, ...]


class CardReading(Message):
    """A node card: a node's memory, backends and models."""

    kind: Literal["card_reading"] = "card_reading"
    card: NodeCard


class TokenTap(Message):
    """A copy of the tokens that a runner sends for one request; sent only while a client watches
    them (a *tap*)."""

    kind: Literal["token_tap"] = "token_tap"
    instance: InstanceId
    request_id: str
    choice: int
    channel: str
    text: str
    step: int
