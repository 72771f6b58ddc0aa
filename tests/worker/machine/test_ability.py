"""What keeps runners from starting, and until when it is believed."""

from __future__ import annotations

from worker.machine.ability import BELIEVED_S, CANNOT_IMPORT, SILENT_S, Ability


def test_a_supervisord_that_does_not_answer_for_seconds_is_told_until_it_does() -> None:
    able = Ability()
    able.note_supervisor("its socket is gone", 10.0)
    assert able.why_not(10.0) == "", "it may be busy"
    able.note_supervisor("its socket is gone", 10.0 + SILENT_S)
    assert "its socket is gone" in able.why_not(10.0 + SILENT_S)
    able.note_supervisor("", 20.0)
    assert able.why_not(99.0) == ""


def test_what_a_runner_said_of_mlx_is_believed_until_another_is_ready_or_for_a_while() -> None:
    able = Ability()
    able.note_ended(72, "a file is torn", 0.0)
    assert able.why_not(0.0) == "", "that is of its model"
    able.note_ended(CANNOT_IMPORT, "No module named 'mlx'", 0.0)
    assert "No module named 'mlx'" in able.why_not(BELIEVED_S - 1)
    assert able.why_not(BELIEVED_S) == ""
    able.note_ended(CANNOT_IMPORT, "No module named 'mlx'", 0.0)
    able.note_ready()
    assert able.why_not(1.0) == ""
