from __future__ import annotations

import ast
import re
from typing import Any, get_args

from runner.recorder import KEPT, STEPS_S, FlightRecorder, RecorderPhase
from tests.harness.nodes import ROOT


def phases(recorder: FlightRecorder) -> list[str]:
    return [entry["phase"] for entry in recorder.report()]


def test_steps_are_one_entry_while_nothing_else_comes() -> None:
    kept: list[tuple[dict[str, Any], bool]] = []
    recorder = FlightRecorder(lambda entry, renews: kept.append((entry, renews)))
    recorder.note(9.0, "idle")
    for count in range(1, 40):
        recorder.stepped(10.0 + count / 4, 100 + count)
    recorder.stepped(99.0, 139)  # no step was done since
    assert phases(recorder) == ["idle", "steps"] and recorder.count == 2
    assert recorder.report()[-1] == {
        "at_s": 19.75, "phase": "steps", "since_s": 10.25, "step": 139,
    }  # fmt: skip
    assert [renews for _, renews in kept] == [False, False, *[True] * 38]


def test_an_engine_that_does_not_come_on_keeps_the_time_of_its_last_change() -> None:
    recorder = FlightRecorder()
    recorder.stepped(9.0, 0, begun=0, engine="host")
    assert phases(recorder) == [], "before its first step"
    recorder.stepped(10.0, 0, begun=1, engine="host")
    recorder.stepped(10.25, 1, begun=2, engine="compute")
    for count in range(2, 9):
        recorder.stepped(10.25 + count / 4, 1, begun=3, engine="host")
    (last,) = recorder.report()
    assert last == {
        "at_s": 10.75, "phase": "steps", "since_s": 10.0, "step": 1, "begun": 3, "engine": "host",
    }  # fmt: skip


def test_steps_between_other_entries_leave_those_their_room() -> None:
    recorder = FlightRecorder()
    for count in range(KEPT):
        at_s = 10.0 + count * STEPS_S / 4
        recorder.stepped(at_s, count + 1)
        recorder.note(at_s, "prefill", done=count)
    assert 0 < phases(recorder).count("steps") <= KEPT // 4


def test_every_entry_says_what_memory_was_measured_last() -> None:
    memory: dict[str, int] = {}
    recorder = FlightRecorder()
    recorder.memory = lambda: memory
    recorder.note(1.0, "load_model")
    memory |= {"active_bytes": 5, "cache_bytes": 1, "peak_bytes": 7, "limit_bytes": 9}
    recorder.note(2.0, "idle")
    recorder.stepped(3.0, 1)
    memory["active_bytes"] = 6
    first, *rest = recorder.report()
    assert "memory" not in first
    assert [entry["memory"]["active_bytes"] for entry in rest] == [5, 5]


def texts_of(path: str) -> set[str]:
    """The texts in a module of the runner, docstrings aside."""
    tree = ast.parse((ROOT / path).read_text())
    return {
        one.value
        for one in ast.walk(tree)
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and "\n" not in one.value
    }


def test_every_phase_is_noted_somewhere_and_told_of_in_the_docs() -> None:
    phases_known = set(get_args(RecorderPhase))
    modules = [
        str(path.relative_to(ROOT))
        for folder in ("roles", "lead", "serving", "embedding")
        for path in (ROOT / "runner" / folder).glob("*.py")
    ]
    noted = {"steps"}.union(*map(texts_of, [*modules, "runner/service.py"]))
    assert phases_known <= noted, phases_known - noted
    page = (ROOT / "docs/operations/diagnostics.md").read_text()
    told = set(re.findall(r"^\| `(\w+)` \| ", page.partition("| phase |")[2], re.MULTILINE))
    assert phases_known <= told, phases_known - told
