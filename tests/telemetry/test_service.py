"""Telemetry on a real switchboard: readings each second, questions answered."""

from __future__ import annotations

import io
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from bus.client import BusClient, Speaker
from bus.links.reactor import PollReactor
from bus.links.tls_files import TlsFiles, forget_served, read_pair, tell_served
from bus.links.transport import Link
from bus.process.clock import now
from bus.process.endpoints import Endpoints
from bus.process.identity import new_boot
from bus.process.logs import Log, death_note
from bus.process.supervisor import Status, SupervisedProcess
from bus.replica.lost_range import LostRange
from bus.service import Shell
from bus.switchboard.switchboard import Switchboard
from bus.wire.accelerators import AcceleratorReading, HardwareReading
from bus.wire.codec import Envelope, decode, encode
from bus.wire.errors import Unavailable
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.control import AskDiagnosis, AskSnapshot, DiagnosisRefused
from bus.wire.messages.readings import (
    FetchReading,
    NodeReading,
    ThunderboltReading,
    WeightsReading,
)
from bus.wire.messages.wire import Message
from telemetry.hardware import Sensed, SensorSource
from telemetry.service import Telemetry
from tests.harness.certificates import TlsPairOnDisk

NODE = NodeId("n1")


def entry(name: str, status: Status, pid: int, description: str = "") -> SupervisedProcess:
    return SupervisedProcess(name, status, pid, 0, 0, None, description, "")


class Bench:
    """A switchboard, telemetry and a listener in one loop that is turned by hand."""

    def __init__(self, folder: Path, sources: Sequence[SensorSource] = ()) -> None:
        self.log = io.StringIO()
        self.reactor = PollReactor()
        self.endpoints = Endpoints(str(folder))
        self.entries: list[SupervisedProcess] = [entry("bus", "running", os.getpid())]
        self.supervised = True
        self.board = Switchboard(self.endpoints, self.reactor, self._log("bus"))
        self.listener = self._client("gateway")
        self.readings: list[NodeReading] = []
        self.listener.hear("reading.node", self._heard)
        self.sensed: list[HardwareReading] = []
        self.listener.hear("reading.hardware", self._sensed)
        shell = Shell(
            self._speaker("telemetry"), self.endpoints, self.reactor, self._log("telemetry")
        )
        self.doors: dict[str, list[int]] = {}
        self.telemetry = Telemetry(
            shell,
            self._listed,
            folder,
            journal=folder / "journal",
            doors=self.doors,
            sources=sources,
        )

    def close(self) -> None:
        self.telemetry.close()
        self.listener.close()
        self.board.close()
        self.reactor.close()

    def until(self, condition: Callable[[], object], seconds: float = 20.0) -> None:
        end = now() + seconds
        while not condition():
            assert now() < end, "waited in vain"
            self.reactor.turn(0.05)

    def reading_with(self, fits: Callable[[NodeReading], object]) -> NodeReading:
        """The first reading that fits; measuring goes on meanwhile."""
        self.until(lambda: self.readings and fits(self.readings[-1]))
        return self.readings[-1]

    def ask(self, message: Message) -> Message:
        link, answers = Link("dealer"), list[Message]()
        link.connect(self.endpoints.telemetry)
        self.reactor.watch(link, lambda frames: answers.append(decode(frames[-1]).message))
        link.send(encode(Envelope(NODE, "gateway", new_boot(), 0, message)))
        self.until(lambda: answers)
        self.reactor.unwatch(link)
        link.close()
        return answers[0]

    def _listed(self) -> list[SupervisedProcess]:
        if not self.supervised:
            raise Unavailable("supervisord at x: gone")
        return self.entries

    def _heard(self, _topic: str, envelope: Envelope) -> None:
        assert isinstance(envelope.message, NodeReading)
        self.readings.append(envelope.message)

    def _sensed(self, _topic: str, envelope: Envelope) -> None:
        assert isinstance(envelope.message, HardwareReading)
        self.sensed.append(envelope.message)

    def _speaker(self, process: str) -> Speaker:
        return Speaker(NODE, process, new_boot())

    def _log(self, process: str) -> Log:
        return Log(node=NODE, process=process, stream=self.log)

    def _client(self, process: str) -> BusClient:
        return BusClient(self._speaker(process), self.endpoints, self.reactor, self._log(process))


@pytest.fixture
def bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="sh") as folder:
        made = Bench(Path(folder))
        yield made
        made.close()


def test_a_reading_tells_of_the_machine_and_of_supervised_processes(bench: Bench) -> None:
    bench.entries.append(entry("runner:00", "stopped", 0, "Not started"))
    reading = bench.reading_with(lambda found: len(found.processes) == 2)
    assert 0 < reading.memory_available_bytes <= reading.memory_total_bytes
    assert 0.0 <= reading.cpu_ratio <= 1.0
    here, slot = reading.processes
    assert here.pid == os.getpid() and here.resident_bytes > 0 and here.cpu_s > 0.0
    assert (slot.name, slot.status, slot.pid, slot.resident_bytes) == ("runner:00", "stopped", 0, 0)


def test_the_gateways_children_are_told_of_as_its_http_processes(bench: Bench) -> None:
    # Our own parent stands in for gunicorn: a process with at least one child, us.
    bench.entries[:] = [entry("gateway", "running", os.getppid())]
    reading = bench.reading_with(lambda found: found.processes[0].name == "gateway")
    names = {process.name: process.pid for process in reading.processes}
    assert names["gateway"] == os.getppid()
    assert os.getpid() in {pid for name, pid in names.items() if name.startswith("gateway/")}


def test_a_service_that_is_down_is_a_finding_in_the_reading(bench: Bench) -> None:
    before = bench.reading_with(lambda found: found.processes)
    assert "process_down" not in {finding.code for finding in before.findings}
    bench.entries.append(entry("worker", "fatal", 0, "no such file"))
    after = bench.reading_with(lambda found: len(found.processes) == 2)
    assert after.findings[0].code == "process_down"


def test_a_model_that_could_not_be_fetched_is_a_finding(bench: Bench) -> None:
    failed = FetchReading(
        model=ModelId("far"), phase="failed", done_bytes=0, total_bytes=9, bytes_per_s=0.0,
        message="far could not be fetched: nobody sent anything",
    )  # fmt: skip
    bench.reading_with(lambda reading: True)
    bench.listener.publish(f"reading.weights.{NODE}", WeightsReading(node=NODE, fetches=(failed,)))
    reading = bench.reading_with(
        lambda reading: any(one.code == "download_failed" for one in reading.findings)
    )
    (found,) = [one for one in reading.findings if one.code == "download_failed"]
    assert found.message == "the download of far failed: nobody sent anything"


def test_without_supervisord_the_rest_is_still_measured_and_it_is_said_once(bench: Bench) -> None:
    bench.supervised = False
    reading = bench.reading_with(lambda found: not found.processes)
    assert reading.memory_total_bytes > 0
    count = len(bench.readings)
    bench.until(lambda: len(bench.readings) > count)
    assert bench.log.getvalue().count("supervisord does not answer") == 1


def test_a_question_is_answered_to_whoever_asked(bench: Bench) -> None:
    answer = bench.ask(AskDiagnosis(want="stacks", process="nobody"))
    assert isinstance(answer, DiagnosisRefused)
    assert answer.status == 404 and "bus" in answer.message


def test_a_question_of_another_kind_is_refused_by_name(bench: Bench) -> None:
    answer = bench.ask(AskSnapshot())
    assert isinstance(answer, DiagnosisRefused)
    assert answer.status == 400 and "AskSnapshot" in answer.message


def test_bridges_in_a_ring_are_told_by_a_node_on_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cables(name: str, *near: str) -> ThunderboltReading:
        domains = tuple(f"{name}-{one}" for one in near)
        return ThunderboltReading(
            bridged=True, domains=domains, peers=tuple(f"{one}-{name}" for one in near)
        )

    monkeypatch.setattr("telemetry.node.meter.CABLES_S", 0.0)
    monkeypatch.setattr("telemetry.node.probes.thunderbolt", lambda: cables("n1", "n2", "n3"))
    mine = bench.reading_with(lambda one: one.thunderbolt is not None)
    assert "thunderbolt_loop" not in [one.code for one in mine.findings]
    for name, other in (("n2", "n3"), ("n3", "n2")):
        reading = mine.model_copy(
            update={"node": NodeId(name), "thunderbolt": cables(name, "n1", other)}
        )
        envelope = Envelope(NodeId(name), "telemetry", new_boot(), 1, reading)
        bench.telemetry._peer_heard("", envelope)  # pyright: ignore[reportPrivateUsage]
    bench.reading_with(lambda one: "thunderbolt_loop" in [f.code for f in one.findings])


def test_a_port_at_which_a_process_does_not_listen_is_told_until_it_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("telemetry.node.meter.DOORS_S", 0.0)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        bench.doors["bus"] = [one.getsockname()[1]]
        told = bench.reading_with(lambda found: found.findings)
        [finding] = [one for one in told.findings if one.code == "port_taken"]
        assert f"bus cannot listen at port {bench.doors['bus'][0]}" in finding.message
        one.listen()
        bench.reading_with(lambda found: "port_taken" not in [one.code for one in found.findings])


def test_what_https_serves_with_is_in_the_findings(bench: Bench, tmp_path: Path) -> None:
    pair = TlsPairOnDisk(tmp_path, days=-2)
    files = TlsFiles(str(pair.certificate), str(pair.key))
    tell_served(bench.endpoints.folder, read_pair(files), "the key is another's")
    found = bench.reading_with(lambda reading: len(reading.findings) > 1).findings
    told = {one.code: one.message for one in found}
    assert told["certificate_refused"] == "the key is another's"
    assert told["certificate_ending"].startswith("the HTTPS certificate expired on ")
    forget_served(bench.endpoints.folder)
    bench.reading_with(lambda reading: "certificate_ending" not in str(reading.findings))


def test_a_thread_that_ended_and_damaged_files_are_findings_of_the_node(bench: Bench) -> None:
    def codes(reading: NodeReading) -> set[str]:
        return {one.code for one in reading.findings}

    grave = {"thread_ended", "state_damaged", "journal_damaged"}
    assert not grave & codes(bench.reading_with(lambda _: True))
    folder = Path(bench.endpoints.folder)
    death_note(str(folder), "gateway")("records")
    (folder / "term.damaged").touch()
    (folder / "journal").mkdir()
    (folder / "journal" / LostRange(1, None).file_name(1)).touch()
    bench.reading_with(lambda reading: grave <= codes(reading))


class Stuck:
    """A source whose first look lasts until the test lets it go."""

    name, period_s = "nvidia", 0.01

    def __init__(self) -> None:
        self.began, self.let_go = threading.Event(), threading.Event()

    def read(self, at: float) -> Sensed:
        self.began.set()
        self.let_go.wait(60)
        return Sensed((CARD,))


class Failing:
    """A source that fails at each look, with words of the moment."""

    name, period_s = "amd", 0.01

    def read(self, at: float) -> Sensed:
        raise OSError("GPU is lost")


CARD = AcceleratorReading(vendor="nvidia", device="0000:1b:00.0", temperature_c=54.0)


def test_a_source_that_hangs_or_fails_delays_no_reading_and_is_said_once() -> None:
    stuck = Stuck()
    with tempfile.TemporaryDirectory(prefix="sh") as folder:
        bench = Bench(Path(folder), (stuck, Failing()))
        try:
            bench.reading_with(lambda reading: stuck.began.is_set())
            bench.until(lambda: bench.sensed and bench.sensed[-1].untold)
            assert [one.why for one in bench.sensed[-1].untold] == ["OSError: GPU is lost"]
            stuck.let_go.set()
            bench.until(lambda: bench.sensed[-1].accelerators)
            assert bench.sensed[-1].accelerators == (CARD,)
            assert bench.log.getvalue().count("cannot read sensors") == 1
        finally:
            stuck.let_go.set()
            bench.close()


def test_sensors_that_tell_nothing_are_told_as_that(bench: Bench) -> None:
    bench.until(lambda: bench.sensed)
    first = bench.sensed[0]
    assert (first.node, first.accelerators, first.cpu_temperature_c) == (NODE, (), None)
