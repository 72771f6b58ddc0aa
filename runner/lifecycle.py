"""The life of a runner and its exit codes.

Pure. A runner serves one generation (load attempt) of one instance and is never reused: `NEXT` has
no way back. The exit code tells the worker what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from bus.wire.instances import Phase

Signal = Literal["spec", "loaded", "warmed", "drain", "empty", "end"]

NEXT: Mapping[Phase, Mapping[Signal, Phase]] = {
    "idle": {"spec": "loading", "drain": "ended", "end": "ended"},
    "loading": {"loaded": "warming", "drain": "ended", "end": "ended"},
    "warming": {"warmed": "ready", "drain": "ended", "end": "ended"},
    "ready": {"drain": "draining", "end": "ended"},
    "draining": {"empty": "ended", "end": "ended"},
    "ended": {},
}
"""The next phase of a runner by phase and signal. `idle` waits for a spec; `draining` refuses new
requests until the open ones have ended or its deadline has passed."""


def signalled(phase: Phase, signal: Signal) -> Phase:
    """Return the next phase; a signal that the table does not list changes nothing."""
    return NEXT[phase].get(signal, phase)


STOPPED: Final = 0
WEDGED: Final = 70
ENGINE_ERROR: Final = 71
LOAD_FAILED: Final = 72
NO_SPEC: Final = 73
SLOT_REFUSED: Final = 74
GROUP_LOST: Final = 76
CANNOT_IMPORT: Final = 77
OVER_MEMORY: Final = 78

EXIT_CODES: Mapping[int, str] = {
    STOPPED: "stopped normally",
    WEDGED: (
        "a step or the preparation of a request exceeded its deadline; the device may be stuck"
    ),
    ENGINE_ERROR: "the engine raised an exception; see the log for its traceback",
    LOAD_FAILED: "the model could not be loaded; retrying will not help",
    NO_SPEC: "no worker sent this slot a spec in time",
    SLOT_REFUSED: "the worker refused this runner",
    GROUP_LOST: "the group did not form or lost a rank; a retry may succeed",
    OVER_MEMORY: "the runner used far more memory beside the model than allowed",
    CANNOT_IMPORT: "MLX cannot be imported on this node; no model loads here until that is fixed",
}
"""The meaning of a runner's exit codes. `bus.service` defines two more: 75 (orphaned) and 3 (role
taken)."""

TELL_STACKS = frozenset({WEDGED, GROUP_LOST})
"""Exit codes that a hanging thread may have caused. Before such an exit the stack traces of all
threads are reported."""

SPEC_DEADLINE_S: Final = 60.0
"""How long a runner that has neither a spec nor a connection to a worker keeps running."""
PREPARES_AFTER_S: Final = 0.3
"""A runner that has waited this long for its spec imports its libraries meanwhile."""
FIRST_STEP_DEADLINE_S: Final = 60.0
SHORTEST_STEP_DEADLINE_S: Final = 5.0
LONGEST_STEP_DEADLINE_S: Final = 10.0
PREPARES_S: Final = 60.0
"""Time limit of tokenising one request. Templates, grammars and prompts have limits of their own,
so exceeding this is a defect."""
RANK_BEAT_S: Final = 0.5
RANK_LOST_S: Final = 3.0
RANK_LOST_LOADING_S: Final = 15.0
"""Silence after which a loading rank counts as lost. It is long, because a load may hold Python's
interpreter lock, so that no heartbeat is sent."""


def lost_peer(message: str) -> bool:
    """Return whether an engine's error means that the connection to another rank is lost."""
    return any(f"[{backend}]" in message for backend in ("ring", "jaccl"))


def step_deadline_s(expected_s: float, steps_done: int) -> float:
    """Return the time limit of the engine's current work, in seconds. It is 8 times the expected
    time, between 5 s and 10 s, or twice the expected time if that is more (a device may be slow).
    It is 60 s until the first step is done."""
    if steps_done == 0:
        return FIRST_STEP_DEADLINE_S
    patience_s = min(max(SHORTEST_STEP_DEADLINE_S, 8 * expected_s), LONGEST_STEP_DEADLINE_S)
    return max(patience_s, 2 * expected_s)
