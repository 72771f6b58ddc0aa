"""How far a pull is, in the lines that Ollama's clients draw bars of.

Pure. All files of a model are one bar: `digest` names them together. A line is not said twice.
"""

from __future__ import annotations

from bus.wire.messages.readings import PullState
from gateway.dialects.encode import json_bytes
from gateway.dialects.faults import HttpFault
from gateway.dialects.ollama.answers import OllamaPullStatus, OllamaStatus
from gateway.dialects.ollama.render import error_object

SUCCESS: OllamaStatus = {"status": "success"}
STATUSES = {
    "checking": "verifying sha256 digest",
    "publishing": "writing manifest",
    "done": "success",
}


def pull_line(state: PullState) -> bytes:
    """Return the line for a state that is no failure."""
    return json_bytes(_told(state)) + b"\n"


def pull_answer() -> bytes:
    """Return the answer of one piece, at the end."""
    return json_bytes(SUCCESS)


def pull_error_line(fault: HttpFault) -> bytes:
    """Return the last line of a pull that failed."""
    return json_bytes(error_object(fault)) + b"\n"


def _told(state: PullState) -> OllamaPullStatus:
    if state.phase in STATUSES:
        return {"status": STATUSES[state.phase]}
    if state.phase not in ("fetching", "copying") or not state.total_bytes:
        return {"status": "pulling manifest"}
    name = state.digest[:12] or state.model
    told: OllamaPullStatus = {
        "status": f"pulling {name}",
        "total": state.total_bytes,
        "completed": state.done_bytes,
    }
    if state.digest:
        told["digest"] = f"sha256:{state.digest}"
    return told
