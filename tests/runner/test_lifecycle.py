"""A runner's life is a table without a way back; its recorder and its gateways are small."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import get_args

from bus.wire.ids import Boot
from bus.wire.messages.control import Phase
from bus.wire.messages.tokens import DATA_PROTOCOL_MAX, DATA_PROTOCOL_MIN, Hello
from runner.lifecycle import EXIT_CODES, NEXT, Signal, signalled, step_deadline_s
from runner.recorder import KEPT, FlightRecorder, RecorderPhase
from runner.serving.clients import Clients

ORDER: tuple[Phase, ...] = get_args(Phase)


def test_every_phase_is_in_the_table_and_only_leads_forward() -> None:
    assert set(NEXT) == set(ORDER)
    for phase, signal in product(ORDER, get_args(Signal)):
        after = signalled(phase, signal)
        assert ORDER.index(after) >= ORDER.index(phase)
        assert after in ("ended", phase) or signal != "end"


def test_every_phase_can_end() -> None:
    for phase in ORDER:
        assert signalled(phase, "end") == "ended"


def test_exit_codes_are_distinct_and_explained() -> None:
    assert len(EXIT_CODES) == 9
    assert all(EXIT_CODES.values())


def test_a_step_has_a_deadline_between_five_and_ten_seconds_but_the_first_a_minute() -> None:
    assert step_deadline_s(0.01, steps_done=0) == 60.0
    assert step_deadline_s(0.01, steps_done=1) == 5.0
    assert step_deadline_s(1.0, steps_done=1) == 8.0
    assert step_deadline_s(4.0, steps_done=1) == 10.0
    assert step_deadline_s(9.0, steps_done=1) == 18.0, "slow is not stuck"


def test_the_recorder_keeps_the_last_entries_in_order() -> None:
    recorder = FlightRecorder()
    for count in range(KEPT + 10):
        recorder.note(float(count), "prefill", f"r{count}", done=count)
    report = recorder.report()
    assert len(report) == KEPT
    assert report[0] == {"at_s": 10.0, "phase": "prefill", "request_id": "r10", "done": 10}
    assert recorder.count == KEPT + 10


def test_a_gateway_is_given_up_after_three_silent_seconds() -> None:
    gateways = Clients()
    gateways.greet(b"a", Hello("a", Boot("1"), DATA_PROTOCOL_MIN, DATA_PROTOCOL_MAX), 0.0)
    gateways.greet(b"b", Hello("b", Boot("1"), DATA_PROTOCOL_MIN, DATA_PROTOCOL_MAX), 0.0)
    assert gateways.note_alive(b"a", 2.0)
    assert gateways.silent(3.5, 0.0) == [b"b"]
    gateways.forget(b"b")
    assert not gateways.note_alive(b"b", 4.0)


def test_a_runner_that_stood_still_gives_up_nobody_for_that_time() -> None:
    gateways = Clients()
    gateways.greet(b"a", Hello("a", Boot("1"), DATA_PROTOCOL_MIN, DATA_PROTOCOL_MAX), 0.0)
    assert gateways.silent(91.0, 91.0) == []
    assert gateways.silent(93.9, 91.0) == []
    assert gateways.silent(94.1, 91.0) == [b"a"]


def test_ranges_without_overlap_are_refused_with_both_named() -> None:
    least, most = DATA_PROTOCOL_MAX + 1, DATA_PROTOCOL_MAX + 3
    answer = Clients().greet(b"x", Hello("x", Boot("1"), least, most), 0.0)
    assert isinstance(answer, str)
    assert f"{least} to {most}" in answer
    assert f"{DATA_PROTOCOL_MIN} to {DATA_PROTOCOL_MAX}" in answer


def test_every_phase_of_the_recorder_is_noted_somewhere() -> None:
    runner = Path(__file__).resolve().parents[2] / "runner"
    files = [path for path in runner.rglob("*.py") if path.name != "recorder.py"]
    text = "\n".join(path.read_text() for path in files)
    phases = set(get_args(RecorderPhase)) - {"steps"}
    assert not [phase for phase in phases if f'"{phase}"' not in text] and ".stepped(" in text


def test_what_the_recorder_keeps_elsewhere_is_what_it_reports() -> None:
    kept: list[dict[str, object]] = []

    def keep(entry: dict[str, object], renews: bool) -> None:
        kept[len(kept) - renews :] = [entry]

    recorder = FlightRecorder(keep)
    recorder.note(1.0, "created", slot="00")
    recorder.note(2.0, "prefill", "r1", done=1)
    recorder.stepped(5.0, 1)
    recorder.stepped(6.0, 2)
    assert tuple(kept) == recorder.report()
    assert [one["phase"] for one in kept] == ["created", "prefill", "steps"]
