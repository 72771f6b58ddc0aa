"""Talks to the bus for telemetry: publishes readings of the node and of its sensors, and answers
questions about processes.

The node is measured each second, or every `ALIKE_S` while its readings show no change. Each
measurement is published.

Measuring blocks on supervisord and the file system, so it has its own thread. That thread hands its
facts to the loop, which alone publishes. A failed measurement is logged once and retried a second
later. If supervisord does not answer, a reading lacks the processes, but nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bus.hardware.thunderbolt import bridge_loops
from bus.links.transport import Link
from bus.membership.peer_table import SameIds
from bus.process.clock import now as clock_now
from bus.process.supervisor import ProcessRefused, SupervisedProcess
from bus.service import Shell
from bus.wire.api_keys import keys_were_lost
from bus.wire.codec import Envelope, decode
from bus.wire.errors import BadMessage, ShoalError
from bus.wire.ids import NodeId
from bus.wire.messages.control import AskDiagnosis, Diagnosis, DiagnosisRefused
from bus.wire.messages.readings import (
    FetchReading,
    NodeReading,
    ThunderboltReading,
    WeightsReading,
)
from bus.wire.topics import reading_topic
from telemetry import diagnose
from telemetry.examine import Examiner, ProcessTarget
from telemetry.hardware import HardwarePublisher, HardwareWatch, SensorSource
from telemetry.health import UNREACHABLE_S, NodeFacts, SilentPeer, findings
from telemetry.node import GATEWAY, Keep, ListProcesses, NodeMeter, are_alike, children

PERIOD_S = 1.0
ALIKE_S = 2.0
"""Seconds between two measurements while the last two readings were alike."""
CABLES_FRESH_S = 15.0


class Telemetry:
    """The service: measures the node each second and answers questions about processes."""

    def __init__(
        self,
        shell: Shell,
        list_processes: ListProcesses,
        folder: Path,
        *,
        journal: Path,
        doors: Mapping[str, Sequence[int]] | None = None,
        sources: Sequence[SensorSource] = (),
        keep: Keep = lambda _running, _now: (),
    ) -> None:
        """Start to measure a node.

        `folder` is the node's data folder, `journal` the master's journal. `doors` are the ports at
        which each process must listen. `sources` are the node's sensors. `keep` restores removed
        files.
        """
        self.shell = shell
        self.node: NodeId = shell.speaker.node
        self.client = shell.client()
        self._list_processes = list_processes
        self._meter = NodeMeter(
            self.node,
            self._list_or_none,
            folder,
            journal=journal,
            doors={} if doors is None else doors,
            runtime=shell.endpoints.folder,
            keep=keep,
        )
        self._complaint: str | None = None
        self._started_at = shell.reactor.now()
        self._peer_heard_at: dict[NodeId, float] = {}
        self._peer_cables: dict[NodeId, ThunderboltReading] = {}
        self._fetches: tuple[FetchReading, ...] = ()
        self._published: NodeReading | None = None
        self._period_s = PERIOD_S
        self._stop = threading.Event()
        capability = diagnose.probe()
        shell.log.info("py-spy", allowed=capability.allowed, reason=capability.reason)
        self.examiner = Examiner(shell.speaker, shell.endpoints, capability, self.targets)
        self._questions = Link("router")
        self._questions.bind(shell.endpoints.telemetry)
        shell.reactor.watch(self._questions, self._take_question)
        self.client.on_state.append(lambda _state: self._meter.supervised.renew())
        self.client.hear("reading.node", self._peer_heard)
        self.client.ignore(reading_topic("node", self.node))
        self._same_ids = SameIds(self.node)
        self.client.hear("reading.peers", self._reading_heard)
        self.client.hear(reading_topic("weights", self.node), self._reading_heard)
        watch = HardwareWatch(self.node, sources)
        self._sensors = HardwarePublisher(shell, self.client, watch)
        self._thread = threading.Thread(target=self._measure, name="meter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop measuring, and close every connection."""
        self._stop.set()
        self._sensors.close()
        self.shell.reactor.unwatch(self._questions)
        self._questions.close()
        self.client.close()

    def targets(self) -> Mapping[str, ProcessTarget]:
        """Return the processes that may be examined now, by name. Waits for supervisord."""
        targets: dict[str, ProcessTarget] = {}
        for supervised in self._list_processes():
            name, pid = supervised.name, supervised.pid
            http_pids = tuple(children(pid)) if name == GATEWAY and pid else ()
            targets[name] = ProcessTarget(name, pid, supervised.status, http_pids)
            for count, child in enumerate(http_pids, 1):
                targets[f"{name}/{count}"] = ProcessTarget(f"{name}/{count}", child, "running")
        return targets

    # --- readings -------------------------------------------------------------------------

    def _list_or_none(self) -> Sequence[SupervisedProcess]:
        try:
            processes = self._list_processes()
        except ProcessRefused as error:
            if error.reason != "shutting_down":
                self._complain(str(error))
            return ()
        except (OSError, ShoalError) as error:
            self._complain(f"supervisord does not answer: {error}")
            return ()
        self._complain(None)
        return processes

    def _complain(self, text: str | None) -> None:
        if text is not None and text != self._complaint:
            self.shell.log.warning(text)
        self._complaint = text

    def _measure(self) -> None:
        while not self._stop.is_set():
            began = clock_now()
            try:
                measured = self._meter.measure()
            except Exception as error:
                # No fault of a probe may end all readings.
                self._complain(f"could not measure: {type(error).__name__}: {error}")
            else:
                self.shell.reactor.call(partial(self._publish, measured))
            self._stop.wait(max(0.05, self._period_s - (clock_now() - began)))

    def _publish(self, measured: NodeFacts) -> None:
        if self._stop.is_set():
            return
        all_findings = findings(self._facts(measured))
        reading = measured.measured.model_copy(update={"findings": all_findings})
        is_alike = self._published is not None and are_alike(self._published, reading)
        self._published, self._period_s = reading, ALIKE_S if is_alike else PERIOD_S
        self.client.publish(reading_topic("node", self.node), reading)

    def _facts(self, measured: NodeFacts) -> NodeFacts:
        failed = tuple(
            (instance.model, instance.why)
            for instance in self.client.state.instances.values()
            if instance.status == "failed"
            and instance.serves
            and any(s.node == self.node for s in instance.shards)
        )
        return replace(
            measured,
            failed_downloads=tuple(
                (fetch.model, fetch.message.removeprefix(f"{fetch.model} could not be fetched: "))
                for fetch in self._fetches
                if fetch.phase == "failed"
            ),
            failed_models=failed,
            keys_lost=keys_were_lost(self.client.state.api_keys),
            supervisor_trouble=self._complaint or "",
            same_ids=self._same_ids.reports(self.shell.reactor.now()),
            holds_model=any(
                shard.node == self.node
                for instance in self.client.state.instances.values()
                for shard in instance.shards
                if instance.status != "failed"
            ),
            silent_peers=self._silent_peers(),
            bridge_loops=self._bridge_loops(measured.measured.thunderbolt),
        )

    def _bridge_loops(self, mine: ThunderboltReading | None) -> tuple[tuple[NodeId, ...], ...]:
        if mine is None:
            return ()
        now = self.shell.reactor.now()
        fresh = {
            node: cables
            for node, cables in self._peer_cables.items()
            if now - self._peer_heard_at[node] < CABLES_FRESH_S
        }
        return bridge_loops({**fresh, self.node: mine})

    def _reading_heard(self, _topic: str, envelope: Envelope) -> None:
        self._same_ids.take(envelope.message, self.shell.reactor.now())
        if isinstance(envelope.message, WeightsReading):
            self._fetches = envelope.message.fetches

    def _peer_heard(self, _topic: str, envelope: Envelope) -> None:
        self._peer_heard_at[envelope.node] = self.shell.reactor.now()
        reading = envelope.message
        if isinstance(reading, NodeReading) and reading.thunderbolt is not None:
            self._peer_cables[envelope.node] = reading.thunderbolt

    def _silent_peers(self) -> tuple[SilentPeer, ...]:
        now = self.shell.reactor.now()
        silent: list[SilentPeer] = []
        for seat in self.client.state.nodes.values():
            since = self._peer_heard_at.get(seat.node, self._started_at)
            if seat.node != self.node and now - since >= UNREACHABLE_S:
                models = self._held_only_at(seat.node)
                silent.append(SilentPeer(seat.node, seat.name, now - since, models))
        return tuple(silent)

    def _held_only_at(self, node: NodeId) -> tuple[str, ...]:
        """Return the models that `node` is needed for: it is part of each of their instances."""
        needs: dict[str, bool] = {}
        for instance in self.client.state.instances.values():
            if instance.serves:
                here = any(shard.node == node for shard in instance.shards)
                needs[instance.model] = needs.get(instance.model, True) and here
        return tuple(sorted(model for model, needed in needs.items() if needed))

    # --- questions ------------------------------------------------------------------------

    def _take_question(self, frames: list[bytes]) -> None:
        if len(frames) != 2:
            return
        asker, content = frames
        try:
            question = decode(content).message
        except BadMessage as error:
            self._answer(asker, DiagnosisRefused(status=400, message=str(error)))
            return
        if not isinstance(question, AskDiagnosis):
            text = f"telemetry only answers ask_diagnosis, not {type(question).__name__}"
            self._answer(asker, DiagnosisRefused(status=400, message=text))
            return
        call = self.shell.reactor.call
        self.examiner.start(question, lambda answer: call(lambda: self._answer(asker, answer)))

    def _answer(self, asker: bytes, answer: Diagnosis | DiagnosisRefused) -> None:
        if not self._stop.is_set():
            self._questions.send(asker, self.client.write(answer))
