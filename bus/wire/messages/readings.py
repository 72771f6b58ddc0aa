"""Readings were measured. Latest wins; nothing here is ever in the state.

Pure. Each is published retained on `reading.<kind>.<node>[.<process>]` with a TTL.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.cards import ModelCard, NodeCard
from bus.wire.ids import CommandId, InstanceId, ModelId, NodeId
from bus.wire.messages.control import Phase
from bus.wire.messages.wire import Message


class ProcessReading(Message):
    """One supervised process. `cpu_s` is user + system since its start."""

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
    """Something an operator should know about `node`, and what to do about it.

    `node` is the node that is concerned: a node's telemetry speaks of itself, and of peers that
    fell silent. `code` is stable and fit for an alert rule.
    """

    node: NodeId
    level: Literal["warn", "error"]
    code: str
    message: str
    remediation: str


class ThunderboltReading(Message):
    """A Mac's Thunderbolt ports: the domains of its own buses, and of those of other Macs that its
    cables lead to. `bridged`: the Thunderbolt Bridge joins its ports."""

    bridged: bool
    domains: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()


class NodeReading(Message):
    """A node's memory, processor and disk, and its processes. Sent every second.

    `cpu_ratio` is 0..1 over all cores; a process's counts cores (2.0 is two of them).
    `findings` come worst first; without one about itself the node is well. `thunderbolt` is
    told by Macs alone, looked at once a minute; so is `wired_bytes`, memory that cannot be paged
    out, each second.
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
    """One peer as this node measured it at `host`. `latency_s` is one way, of a small message of
    MLX's ring; `round_trip_s` that of an echo over the bus. `at_least`: the link may carry more,
    for it was not the network that set the pace. `age_s` is the bandwidth's."""

    peer: NodeId
    latency_s: float = Field(gt=0)
    bytes_per_s: float = Field(gt=0)
    host: str = ""
    at_least: bool = False
    round_trip_s: float = 0.0
    age_s: float = 0.0
    latency_age_s: float = 0.0


class RestingLink(Message):
    """A peer that is not measured now, and why: it has not had its first turn, one of the two nodes
    computes, loads or fetches, or none of the peer's addresses answers."""

    peer: NodeId
    why: Literal["new", "busy_here", "busy_there", "unanswered"]


class LinkReading(Message):
    """A node's links, measured while they were idle, an entry for each address at which a peer
    answered. `latency_every_s` and `bandwidth_every_s` say how often idle ones are measured, 0 for
    a node that is not to measure; `resting` are the peers that are measured less often than that.
    """

    kind: Literal["link_reading"] = "link_reading"
    node: NodeId
    links: tuple[MeasuredLink, ...]
    measured_at_s: float
    latency_every_s: float = 0.0
    bandwidth_every_s: float = 0.0
    resting: tuple[RestingLink, ...] = ()


class RunnerReading(Message):
    """A runner's queue, speed and memory, every second. Ratios are 0..1; per_s over that second.

    Every rank of a group has one; requests, tokens and KV are the lead's to tell (`rank` 0).
    `best_waiting_priority` is the smallest among waiting rows, `best_running_priority` among the
    others. `last_used_ago_s`: since a request was last open. `kv` is how its layers hold KV:
    "full", "8bit", or "8bit in 4 of 24 layers"; empty if unknown. Measured are `active_bytes`,
    `cache_bytes` (freed, and kept) and what the process has (`process_bytes`); `limit_bytes` was
    promised; `memory_ends` counts rows that ended for it. `found`: what it found of text files."""

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


class ClassDemand(Message):
    """Those of one priority among the requests that wait for a model."""

    priority: int
    waiting: int
    oldest_s: float


class ModelDemand(Message):
    """Requests that wait at a gateway for a model that is not ready, and of each priority how many
    and for how long."""

    model: ModelId
    waiting: int
    best_priority: int
    oldest_s: float
    classes: tuple[ClassDemand, ...] = ()


class DemandReading(Message):
    """The unmet demand at one gateway process; it is what loads models."""

    kind: Literal["demand_reading"] = "demand_reading"
    node: NodeId
    process: str
    models: tuple[ModelDemand, ...] = ()


FetchPhase = Literal["asking", "staging", "fetching", "checking", "publishing", "done", "failed"]


class FetchReading(Message):
    """How far a model's way to this node's disk is. `sources` are the nodes that send it now;
    `bytes_per_s` over the last 5 s; `message` says why it failed."""

    model: ModelId
    phase: FetchPhase
    done_bytes: int
    total_bytes: int
    bytes_per_s: float
    sources: tuple[NodeId, ...] = ()
    message: str = ""


class WeightsReading(Message):
    """The models that a node fetches, by name. Every second while there are any, and on change."""

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
    "broken",
]
"""Why a pull failed. `unfit`: what is there is no model that can be run; `no_giver`:
it was to come from other nodes alone, and none gives it; `too_large`: no nodes of
the cluster could ever hold it in memory; `changed`: the hub's files are not those that it listed;
`broken`: this node could not, for a reason of its own."""


class PullForecast(Message):
    """What a pull would bring, before any of its weights came. `card` is the model's as its node
    would announce it, made from its configuration and the sizes of its files; None where it could
    not be made, for the reason in `why`, or where other nodes have the model. `lacking_bytes` of
    the files are still to come to a disk of which `disk_free_bytes` are free. `no_speed` says why
    no speed can be predicted from the card; empty: it can."""

    card: ModelCard | None = None
    why: str = ""
    lacking_bytes: int = Field(default=0, ge=0)
    disk_free_bytes: int = Field(default=0, ge=0)
    no_speed: str = ""


class PullClaim(Message):
    """That a node is to ask `hub` for a model's newest revision, for all nodes: claimed `at_s` of
    its wall clock. `fetches`: it has begun. `gives`: other nodes can copy from it. The others wait
    for the first claim: one that fetches, then the older one, then the lesser node id."""

    at_s: float
    hub: str = Field(max_length=2048)
    fetches: bool = False
    gives: bool = True


class PullState(Message):
    """How far a model's way from a hub to a node's disk is. `revision` is the commit, once known;
    `digest` names exactly these files. `bytes_per_s` is over the last 5 s; `received_bytes` came
    over the network in this attempt. `copying`: it comes from `sources`, nodes that have it. `note`
    says what is waited for. `questions` are of those who wait; a failure has `reason` and
    `message`. `forecast` is there while it is held, for those who asked so. `claim` is there from
    before the first weights are asked for until the pull fails or is a copy. A pull that waits for
    another node's has the figures of that one."""

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


class PullReading(Message):
    """The models that a node pulls, and those that it pulled a moment ago. Twice a second while
    there are any, and on change."""

    kind: Literal["pull_reading"] = "pull_reading"
    node: NodeId
    pulls: tuple[PullState, ...] = ()


class UndoneChange(Message):
    """A change that a node's log had and the one that took its place lacks, or a copy of a model
    that was let go with it. `what` is the kind of the event, `about` what it concerned, for people;
    `at_s` is when it was undone, by the wall clock."""

    what: str
    about: str
    at_s: float
    instance: InstanceId | None = None
    command_id: CommandId | None = None


class UndoneReading(Message):
    """What was undone at a node since its master started, oldest first, at most 100."""

    kind: Literal["undone_reading"] = "undone_reading"
    node: NodeId
    changes: tuple[UndoneChange, ...]


class KeyUse(Message):
    """What was asked for with one API key at one gateway process: requests that run, those of the
    last 60 s, tokens of the day; `used_at_s` is when it was last used, in seconds since 1970."""

    key: str
    running: int
    requests: int
    tokens: int
    used_at_s: float


class KeyUseReading(Message):
    """The use of API keys at one gateway process. `day` counts those of UTC since 1970."""

    kind: Literal["key_use_reading"] = "key_use_reading"
    node: NodeId
    process: str
    day: int
    uses: tuple[KeyUse, ...] = ()


class CardReading(Message):
    """A node's capability card."""

    kind: Literal["card_reading"] = "card_reading"
    card: NodeCard


class TokenTap(Message):
    """A copy of what a runner sends to one request; exists only while there is a tap."""

    kind: Literal["token_tap"] = "token_tap"
    instance: InstanceId
    request_id: str
    choice: int
    channel: str
    text: str
    step: int
