"""The HTTP error for each error that shoal raises on purpose, and the refusal of a call between
nodes whose handler raised it. Pure.

Every error of a request passes through `fault_of`, whichever part of the process raised it.
"""

from __future__ import annotations

from bus.calls import CallFailed, plain_refusal
from bus.wire.errors import OwnerSilent, ShoalError
from bus.wire.messages.gateways import CallRefusal
from gateway.dialects import faults
from gateway.dialects.faults import HttpFault
from gateway.records import RecordsUnavailable


def fault_of(error: Exception) -> HttpFault | None:
    """Return the HTTP error for an error. Returns None for an error that no code raises on purpose,
    which is a failure of shoal itself."""
    match error:
        case OwnerSilent():
            return faults.owner_silent(str(error), error.waited_s)
        case CallFailed():
            return _call_failed(error)
        case RecordsUnavailable():
            return faults.records_unavailable(str(error))
        case _:
            return faults.of_error(error)


def call_refusal(error: ShoalError) -> CallRefusal:
    """Return the refusal to send to the calling node if the handler of a call raised `error`. On
    the calling node, `fault_of` converts the refusal back to the HTTP error."""
    fault = fault_of(error)
    if fault is None:
        return plain_refusal(error)
    return CallRefusal(
        message=fault.message,
        status=fault.status,
        code=fault.code,
        field=fault.field,
        retry_after_s=fault.retry_after_s,
    )


def _call_failed(error: CallFailed) -> HttpFault:
    """Return the HTTP error for a call to another node that failed. If the other node's handler
    refused the call, its refusal decides status and code. An error of the server names the node."""
    match error.why, error.refusal:
        case _, CallRefusal(status=status) as refusal if status:
            message = str(error) if status >= 500 else refusal.message
            return HttpFault(status, refusal.code, message, refusal.field, refusal.retry_after_s)
        case "silent", _:
            return faults.owner_silent(str(error), error.waited_s)
        case why, _:
            return faults.records_elsewhere(why == "down", str(error))
