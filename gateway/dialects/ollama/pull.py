"""The progress of a pull, in lines from which Ollama's clients draw bars.

Pure. All files of a model share one bar: `digest` identifies it.
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
    """Return the line that reports the progress or the success of a pull."""
    return json_bytes(_status_of(state)) + b"\n"


def pull_answer() -> bytes:
    """Return the final answer to a client that does not stream."""
    return json_bytes(SUCCESS)


def pull_error_line(fault: HttpFault) -> bytes:
    """Return the last line of a failed pull."""
    return json_bytes(error_object(fault)) + b"\n"


def _status_of(state: PullState) -> OllamaPullStatus:
    if state.phase in STATUSES:
        return {"status": STATUSES[state.phase]}
    if state.phase not in ("fetching", "copying") or not state.total_bytes:
        return {"status": "pulling manifest"}
    name = state.digest[:12] or state.model
    status: OllamaPullStatus = {
        "status": f"pulling {name}",
        "total": state.total_bytes,
        "completed": state.done_bytes,
    }
    if state.digest:
        status["digest"] = f"sha256:{state.digest}"
    return status
