"""The holder's answers to commands and readings: events, as data.

Pure: time arrives as `now`.
"""

from master.decisions.collective_tests import expire_tests
from master.decisions.crash_loop import CrashLoops
from master.decisions.decide import Decided, Decision, Known, Later, Policy, Scene, decide
from master.decisions.evict import SETTLE_S
from master.decisions.observations import Observations
from master.decisions.planner import (
    PlannerNotes,
    drain_idle,
    follow_up,
    note_event,
    repairs,
    wanted_commands,
)
from master.decisions.prune import SETTLE_GRACE_S, SilenceWatch, lost_models, remove_silent

__all__ = [
    "SETTLE_GRACE_S", "SETTLE_S", "CrashLoops", "Decided", "Decision", "Known", "Later",
    "Observations", "PlannerNotes", "Policy", "Scene", "SilenceWatch", "decide", "drain_idle",
    "expire_tests", "follow_up", "lost_models", "note_event", "remove_silent", "repairs",
    "wanted_commands",
]  # fmt: skip
