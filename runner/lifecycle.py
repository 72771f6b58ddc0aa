"""The life of a runner, and how it may end.

Pure. A runner holds one generation of one instance and is never used again: there is no way
back in `NEXT`. Every exit code says who has to do what.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from bus.wire.messages.control import Phase

Signal = Literal["spec", "loaded", "warmed", "drain", "empty", "end"]

NEXT: Mapping[Phase, Mapping[Signal, Phase]] = {
    "idle": {"spec": "loading", "drain": "ended", "end": "ended"},
    "loading": {"loaded": "warming", "drain": "ended", "end": "ended"},
    "warming": {"warmed": "ready", "drain": "ended", "end": "ended"},
    "ready": {"drain": "draining", "end": "ended"},
    "draining": {"empty": "ended", "end": "ended"},
    "ended": {},
}
"""`idle` waits for a spec; `draining` refuses new work until it is empty or out of time."""


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
    STOPPED: "stopped in good order",
    WEDGED: "a step, or a request's preparation, passed its deadline; the device may be wedged",
    ENGINE_ERROR: "the engine raised; see the log for its traceback",
    LOAD_FAILED: "the model could not be loaded; trying again will not help",
    NO_SPEC: "no worker was there in time to give this slot a spec",
    SLOT_REFUSED: "the worker has nothing for this slot",
    GROUP_LOST: "the group did not form, or lost a rank; a new generation may do better",
    OVER_MEMORY: "its process took far more memory beside the model than it may",
    CANNOT_IMPORT: "MLX cannot be imported on this node; no model loads here until that is mended",
}
"""What a runner's exit code means (75, orphaned, and 3, role taken, are `bus.service`'s)."""

TELL_STACKS = frozenset({WEDGED, GROUP_LOST})
"""Ends that somebody's hanging may have caused: where the threads are is told before them, as it is
where a load takes too long."""

SPEC_DEADLINE_S: Final = 60.0
"""How long a runner without a spec stays where there is no worker."""
PREPARES_AFTER_S: Final = 0.3
"""A runner that has waited so long for its spec imports its libraries meanwhile."""
FIRST_STEP_DEADLINE_S: Final = 60.0
SHORTEST_STEP_DEADLINE_S: Final = 5.0
LONGEST_STEP_DEADLINE_S: Final = 10.0
PREPARES_S: Final = 60.0
"""How long one request may take to become tokens: templates, grammars and the length of a prompt
have limits of their own, so that it is a defect which takes longer."""
BATCH_DEADLINE_S: Final = 60.0
"""How long a batch of inputs may take, or four times what is expected where that is more: unlike a
prompt's prefill, an input cannot be computed in parts."""
RANK_BEAT_S: Final = 0.5
RANK_LOST_S: Final = 3.0
RANK_LOST_LOADING_S: Final = 15.0
"""While a rank loads its part, the interpreter may be held for longer than otherwise."""


def lost_peer(message: str) -> bool:
    """Return whether an engine's error says that the connection to another rank is gone."""
    return any(f"[{backend}]" in message for backend in ("ring", "jaccl"))


def batch_deadline_s(expected_s: float) -> float:
    """Return how long an embedding engine may take over a batch."""
    return max(BATCH_DEADLINE_S, 4 * expected_s)


def step_deadline_s(expected_s: float, steps_done: int) -> float:
    """Return how long the engine may take over what it has been given: 8 times what is expected,
    5 s at the least and 10 s at most, or twice what is expected where that is more (a device may
    be that slow); 60 s for the first step, and while costs are learned."""
    if steps_done == 0:
        return FIRST_STEP_DEADLINE_S
    patience_s = min(max(SHORTEST_STEP_DEADLINE_S, 8 * expected_s), LONGEST_STEP_DEADLINE_S)
    return max(patience_s, 2 * expected_s)
