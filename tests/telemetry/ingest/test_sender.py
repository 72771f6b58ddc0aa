"""Lines of log files reach a collector that takes them, refuses them, hangs and comes back."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bus.links.collector import HttpCollector
from bus.process.logs import LineCounts, Log, read_line_counts
from telemetry.ingest import IngestTiming, LineSender, sender
from tests.harness.line_collector import LineCollector, collecting_lines
from tests.harness.nodes import eventually

QUICK = IngestTiming(look_s=0.01, again_s=0.01, rest_s=0.02, say_s=60.0)


class Logs:
    """A folder of logs, and what its sender itself has logged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stream = io.StringIO()

    def write(self, name: str, *messages: str) -> None:
        with (self.folder / name).open("a") as file:
            for message in messages:
                line = {"message": message, "node": "n1", "process": name.removesuffix(".log")}
                file.write(json.dumps(line) + "\n")

    def said(self, message: str) -> list[dict[str, Any]]:
        told = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [line for line in told if line["message"] == message]

    @contextmanager
    def sending(self, url: str, timeout_s: float = 5.0, **headers: str) -> Iterator[LineSender]:
        log = Log(node="n1", process="telemetry", stream=self.stream)
        made = LineSender(self.folder, HttpCollector(url, headers, timeout_s), "n1", log, QUICK)
        try:
            yield made
        finally:
            made.close()
            made._thread.join(10)
            assert not made._thread.is_alive()


AWAY = "log lines do not reach the collector"
AGAIN = "log lines reach the collector again"
DROPPED = "log lines are dropped, the oldest first"


def come(collector: LineCollector, *messages: str) -> None:
    """Wait until these lines have come, and no others, in any order."""
    eventually(lambda: len(collector.lines) >= len(messages), 20, f"{messages} come")
    assert sorted(collector.messages) == sorted(messages)


def test_lines_of_all_processes_come_with_the_token(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.write("bus.log", "one")
    token = {"authorization": "Bearer s3", "content-type": "application/x-ndjson"}
    with collecting_lines() as collector, logs.sending(collector.url, **token):
        come(collector, "one")
        logs.write("runner-03.log", "two")
        (tmp_path / "gateway.log").write_text("no JSON\n")
        come(collector, "one", "two", "no JSON")
        assert collector.heads[0].items() >= (token | {"path": "/in?stream=shoal"}).items()
        (plain,) = [line for line in collector.lines if line["message"] == "no JSON"]
        assert (plain["node"], plain["process"]) == ("n1", "gateway")
    assert read_line_counts(tmp_path) == LineCounts(sent=3)


def test_the_next_start_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.write("bus.log", "one")
    with collecting_lines() as collector:
        with logs.sending(collector.url):
            come(collector, "one")
            eventually(lambda: read_line_counts(tmp_path) == LineCounts(1), 10, "it is kept")
        (tmp_path / "bus.log").rename(tmp_path / "bus.log.1")
        logs.write("bus.log", "two")
        logs.write("worker.log", *(f"{count:05} {'w' * 100}" for count in range(2000)))
        with logs.sending(collector.url):
            eventually(lambda: len(collector.lines) >= 2002, 20, "the others come")
        assert collector.messages.count("one") == collector.messages.count("two") == 1


def test_the_first_start_sends_the_ends_of_the_files_alone(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    logs.write("bus.log", *(f"{count:05} {'b' * 100}" for count in range(2000)))
    with collecting_lines() as collector, logs.sending(collector.url):
        eventually(lambda: any("01999" in one for one in collector.messages), 20, "the end comes")
    first = int(collector.messages[0][:5])
    assert 1000 < first < 2000
    assert [one[:5] for one in collector.messages] == [f"{n:05}" for n in range(first, 2000)]


def test_each_line_comes_once_the_collector_is_back(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    with collecting_lines() as collector:
        collector.refuses = lambda _: 503
        with logs.sending(collector.url):
            logs.write("bus.log", "one")
            eventually(lambda: collector.asked >= 3, 20, "it is asked again and again")
            logs.write("bus.log", "two")
            collector.refuses = lambda _: 0
            come(collector, "one", "two")
            eventually(lambda: logs.said(AGAIN), 10, "it is said")
    (away,) = logs.said(AWAY)
    assert (away["why"], away["collector"]) == (
        "it answers with 503",
        f"http://127.0.0.1:{collector.port}",
    )
    assert read_line_counts(tmp_path) == LineCounts(sent=2)


def test_a_collector_that_hangs_is_given_up_and_asked_again(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    with collecting_lines() as collector:
        collector.answers.clear()
        with logs.sending(collector.url, timeout_s=0.1):
            logs.write("bus.log", "one")
            eventually(lambda: collector.asked >= 2, 20, "it is asked again")
            collector.answers.set()
            come(collector, "one")
    assert len(logs.said(AWAY)) == 1


def test_one_line_that_is_refused_holds_up_no_other(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    good = [f"good {count}" for count in range(40)]
    with collecting_lines() as collector:
        collector.refuses = lambda lines: 400 if any(x["message"] == "bad" for x in lines) else 0
        with logs.sending(collector.url):
            logs.write("bus.log", *good[:20], "bad", *good[20:])
            come(collector, *good)
            eventually(lambda: read_line_counts(tmp_path) == LineCounts(40, 1), 10, "it is counted")
    assert len(logs.said(DROPPED)) == 1


def test_a_backlog_has_a_bound_and_what_is_dropped_is_counted_and_said_once(
    tmp_path: Path, monkeypatch: Any
) -> None:
    bounded: Callable[..., Any] = lambda path, place: pass_over(path, place, 5_000)  # noqa: E731
    pass_over = sender.pass_over
    monkeypatch.setattr(sender, "pass_over", bounded)
    logs = Logs(tmp_path)
    with collecting_lines() as collector:
        collector.refuses = lambda _: 503
        with logs.sending(collector.url):
            logs.write("bus.log", "first")
            eventually(lambda: collector.asked, 20, "it is asked")
            for count in range(300):
                logs.write("bus.log", f"{count:03}")
            asked = collector.asked
            eventually(lambda: collector.asked >= asked + 2, 20, "all that was written is known")
            collector.refuses = lambda _: 0
            eventually(lambda: "299" in collector.messages, 20, "the newest comes")
            total = LineCounts(len(collector.lines), 301 - len(collector.lines))
            eventually(lambda: read_line_counts(tmp_path) == total, 10, "each line is counted once")
    assert collector.messages == [f"{n:03}" for n in range(300 - len(collector.lines), 300)]
    assert len(logs.said(DROPPED)) == 1 and total.dropped > 100


def test_a_file_that_cannot_be_read_holds_up_no_other(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    (tmp_path / "bad.log").mkdir()
    with collecting_lines() as collector, logs.sending(collector.url):
        logs.write("bus.log", "one")
        come(collector, "one")
        logs.write("bus.log", "two")
        come(collector, "one", "two")
    (said,) = logs.said("a log file is not sent")
    assert (said["file"], said["why"]) == ("bad.log", "Is a directory")


def test_what_is_kept_is_spoilt_and_lines_go_on(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    (tmp_path / "sent.json").write_text('{"places": {"bus.log": [1]}, "sent": 3, "dropped": 0}')
    logs.write("bus.log", "one")
    with collecting_lines() as collector, logs.sending(collector.url):
        come(collector, "one")
