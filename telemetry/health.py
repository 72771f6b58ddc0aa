"""Findings about a node: its faults, each with a code, a sentence and a remedy.

Pure: it takes facts and returns findings, worst first. A node without findings is healthy. The
rules are small functions, one for each fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bus.process.endpoints import Removed
from bus.replica.lost_range import damage_words, range_of
from bus.wire.api_keys import KEYS_LOST_WORDS
from bus.wire.ids import NodeId
from bus.wire.messages.readings import HealthFinding, NodeReading

DISK_FULL_BYTES = 2 << 30
DISK_LOW_BYTES = 10 << 30
UNREACHABLE_S = 15.0
MEMORY_LOW_RATIO = 0.10
WIRED_IDLE_BYTES = 5 << 30

CODES: dict[str, str] = {
    "disk_full": "the disk with models and journals has less than 2 GB free",
    "disk_low": "the disk with models and journals has less than 10 GB free",
    "journal_damaged": "the journal was damaged and lost events; the damaged file is still there",
    "state_damaged": "another state file was damaged, and the damaged file is still there",
    "keys_lost": "API keys may be lost, so each node accepts only its owner",
    "thread_ended": "a thread of a service was stopped by an error",
    "download_failed": "a download of a model failed",
    "model_failed": "shoal gave up loading a model, for example after repeated failures",
    "supervisor_silent": "supervisord does not answer, so no process can be started or stopped",
    "means_gone": "a file or folder was removed and not restored",
    "means_restored": "a file or folder was removed and restored without its content",
    "process_down": "a supervised process is not running",
    "process_restarting": "a supervised process keeps exiting",
    "port_taken": "another program uses a port that this node needs",
    "certificate_refused": "the certificate and key files of HTTPS are unusable",
    "certificate_ending": "the HTTPS certificate has expired or expires within 14 days",
    "memory_low": "less than a tenth of the memory is available",
    "memory_wired": "much memory stays wired although no model is loaded",
    "unreachable": "a node has not answered for 15 s",
    "same_id": "two running nodes have the same id",
    "thunderbolt_loop": "Thunderbolt bridges of more than two nodes form a ring",
}
"""Every code that a finding may carry."""
ERRORS = frozenset(
    {
        "disk_full",
        "download_failed",
        "journal_damaged",
        "keys_lost",
        "means_gone",
        "supervisor_silent",
        "process_down",
        "port_taken",
        "same_id",
        "state_damaged",
        "thread_ended",
    }
)
"""Codes of errors; all others are warnings."""


@dataclass(frozen=True, slots=True)
class SilentPeer:
    """A joined node that has sent nothing for `silent_s`. Every instance of `models` needs that
    node."""

    node: NodeId
    name: str
    silent_s: float
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClosedPort:
    """A port that `process` should listen on and does not. `owner` is the program that uses the
    port instead."""

    port: int
    process: str
    owner: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts about one node, from which `findings` derives its faults."""

    measured: NodeReading
    holds_model: bool = False
    """A runner of this node holds or loads a model."""
    keys_lost: bool = False
    """The cluster may have lost API keys."""
    closed_ports: tuple[ClosedPort, ...] = ()
    damaged_files: tuple[str, ...] = ()
    """Paths of damaged state files that were set aside."""
    dead_threads: tuple[tuple[str, str], ...] = ()
    """(process, thread) of each thread that an error stopped."""
    failed_downloads: tuple[tuple[str, str], ...] = ()
    """Models whose download failed, each with the reason."""
    failed_models: tuple[tuple[str, str], ...] = ()
    """Models that were given up after failures, each with the reason."""
    supervisor_trouble: str = ""
    """Why supervisord did not answer; "" if it did."""
    silent_peers: tuple[SilentPeer, ...] = ()
    same_ids: tuple[tuple[NodeId, str], ...] = ()
    """Ids that two running nodes have, each with what is wrong and the remedy."""
    bridge_loops: tuple[tuple[NodeId, ...], ...] = ()
    """The nodes of each ring of Thunderbolt bridges in the whole cluster."""
    pair_trouble: str = ""
    """The fault of the certificate and key files for HTTPS; "" if they have none."""
    certificate_standing: str = ""
    """A warning about the HTTPS certificate in use; "" if there is none."""
    removed: tuple[Removed, ...] = ()
    """Files and folders that were removed while the node ran."""


def findings(facts: NodeFacts) -> tuple[HealthFinding, ...]:
    """Return all findings: errors first, then warnings, each in the order of the rules."""
    all_findings = [finding for rule in _RULES for finding in rule(facts)]
    return tuple(sorted(all_findings, key=lambda finding: finding.level != "error"))


def _disk(facts: NodeFacts) -> Iterable[HealthFinding]:
    free = facts.measured.disk_free_bytes
    if free >= DISK_LOW_BYTES:
        return
    left = f"the disk with models and journals has {free / (1 << 30):.1f} GB free"
    way_out = "free disk space, or delete an unused model with `shoal rm`"
    yield _finding(facts, "disk_full" if free < DISK_FULL_BYTES else "disk_low", left, way_out)


def _damage(facts: NodeFacts) -> Iterable[HealthFinding]:
    for path in facts.damaged_files:
        code = "state_damaged" if range_of(path.rpartition("/")[2]) is None else "journal_damaged"
        yield _finding(facts, code, *damage_words(path))


def _keys(facts: NodeFacts) -> Iterable[HealthFinding]:
    if facts.keys_lost:
        yield _finding(facts, "keys_lost", *KEYS_LOST_WORDS)


def _threads(facts: NodeFacts) -> Iterable[HealthFinding]:
    for process, thread in facts.dead_threads:
        yield _finding(
            facts,
            "thread_ended",
            f"the thread {thread} of {process} was stopped by an error; its work is no longer done",
            f"find the error with `shoal logs {process}`, then run `shoal restart`",
        )


def _downloads(facts: NodeFacts) -> Iterable[HealthFinding]:
    for model, why in facts.failed_downloads:
        yield _finding(
            facts,
            "download_failed",
            f"the download of {model} failed: {why}",
            "fix the cause and request the model again; the downloaded part is kept",
        )


def _supervisor(facts: NodeFacts) -> Iterable[HealthFinding]:
    if facts.supervisor_trouble:
        yield _finding(
            facts,
            "supervisor_silent",
            facts.supervisor_trouble,
            "loaded models keep serving; `shoal restart` restarts the whole node",
        )


def _means(facts: NodeFacts) -> Iterable[HealthFinding]:
    for removed in facts.removed:
        means = removed.means
        if removed.is_back:
            message = f"{means.what} was removed and restored without {means.lost}: {means.path}"
            way_out = "find the program that removes files there, and exclude this folder"
            yield _finding(facts, "means_restored", message, way_out)
            continue
        why = f" ({removed.trouble})" if removed.trouble else ""
        message = f"{means.what} was removed, so {means.without}: {means.path}{why}"
        way_out = f"run `shoal restart`; {means.owner} failed to restore it"
        if not means.owner:
            way_out = f"allow this user to create {means.path}; shoal retries each second"
        yield _finding(facts, "means_gone", message, way_out)


def _processes(facts: NodeFacts) -> Iterable[HealthFinding]:
    for process in facts.measured.processes:
        # An empty slot means an unloaded model; the worker reports how a runner ended.
        slot = process.name.startswith("runner:")
        if process.status == "fatal" or (process.status == "exited" and not slot):
            yield _finding(
                facts,
                "process_down",
                f"{process.name} is down ({process.status}): {process.description}".rstrip(": "),
                f"read `shoal logs {process.name}`, then run `shoal down` and `shoal up`",
            )
        elif process.status == "backoff":
            yield _finding(
                facts,
                "process_restarting",
                f"{process.name} exited right after its start: {process.description}".rstrip(": "),
                f"find the error with `shoal logs {process.name}`",
            )


def _ports(facts: NodeFacts) -> Iterable[HealthFinding]:
    for closed in facts.closed_ports:
        yield _finding(
            facts,
            "port_taken",
            f"{closed.process} cannot listen at port {closed.port}; {closed.owner} uses it",
            "stop that program, or move this node: `shoal down`, then `shoal up --base-port PORT`",
        )


def _certificates(facts: NodeFacts) -> Iterable[HealthFinding]:
    if facts.pair_trouble:
        yield _finding(
            facts,
            "certificate_refused",
            facts.pair_trouble,
            "repair the files: a valid pair is used at once; the previous pair serves until then",
        )
    if facts.certificate_standing:
        yield _finding(
            facts,
            "certificate_ending",
            f"the HTTPS certificate {facts.certificate_standing}",
            "replace both files; the node uses the new pair without a restart",
        )


def _models(facts: NodeFacts) -> Iterable[HealthFinding]:
    for model, why in facts.failed_models:
        yield _finding(
            facts,
            "model_failed",
            f"shoal gave up loading {model}: {why}",
            f"read the runner's log with `shoal logs`, then retry with `shoal load {model}`",
        )


def _memory(facts: NodeFacts) -> Iterable[HealthFinding]:
    measured = facts.measured
    total, available = measured.memory_total_bytes, measured.memory_available_bytes
    if total > 0 and available < MEMORY_LOW_RATIO * total:
        yield _finding(
            facts,
            "memory_low",
            f"{available / (1 << 30):.1f} of {total / (1 << 30):.1f} GB of memory are available",
            "`shoal ps` shows which models are loaded, `shoal stop` unloads one",
        )
    wired = measured.wired_bytes
    if wired is not None and wired > WIRED_IDLE_BYTES and not facts.holds_model:
        yield _finding(
            facts,
            "memory_wired",
            f"{wired / (1 << 30):.1f} GB are wired (not pageable) although no model is loaded; "
            "if that lasts 10 s, no model will be loaded here",
            "a GPU driver has not released them: reboot to free them, or load models anyway with "
            "`shoal nodes undrain NODE`",
        )


def _peers(facts: NodeFacts) -> Iterable[HealthFinding]:
    for peer in facts.silent_peers:
        if peer.silent_s >= UNREACHABLE_S:
            message = f"{peer.name} has not answered for {peer.silent_s:.0f} s"
            if peer.models:
                names = ", ".join(peer.models)
                message += f"; {names} cannot be placed on other nodes as requested, so it waits"
            yield HealthFinding(
                node=peer.node,
                level="warn",
                code="unreachable",
                message=message,
                remediation="check that the machine is awake, its `shoal status` and the network",
            )


def _same_ids(facts: NodeFacts) -> Iterable[HealthFinding]:
    for node, why in facts.same_ids:
        message, _, way_out = why.partition(": ")
        yield HealthFinding(
            node=node, level="error", code="same_id", message=message, remediation=way_out
        )


def _bridges(facts: NodeFacts) -> Iterable[HealthFinding]:
    for loop in facts.bridge_loops:
        if facts.measured.node in loop:
            yield _finding(
                facts,
                "thunderbolt_loop",
                f"the Thunderbolt bridges of {len(loop)} nodes form a ring ({', '.join(loop)}): "
                "packets circulate forever",
                "switch the bridge off on each node: "
                "`networksetup -setnetworkserviceenabled 'Thunderbolt Bridge' off`",
            )


def _finding(facts: NodeFacts, code: str, message: str, remediation: str) -> HealthFinding:
    level = "error" if code in ERRORS else "warn"
    node = facts.measured.node
    return HealthFinding(
        node=node, level=level, code=code, message=message, remediation=remediation
    )


_RULES = (
    _damage,
    _keys,
    _threads,
    _disk,
    _downloads,
    _supervisor,
    _means,
    _processes,
    _ports,
    _certificates,
    _models,
    _memory,
    _peers,
    _same_ids,
    _bridges,
)
