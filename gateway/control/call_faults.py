"""Translates between refusals of calls (between nodes) and HTTP errors. Pure."""

from __future__ import annotations

from bus.calls import CallFailed, plain_refusal
from bus.wire.errors import ShoalError
from bus.wire.messages.gateways import CallRefusal
from gateway.dialects import faults
from gateway.dialects.faults import HttpFault, HttpFaultRaised


def call_failed(error: CallFailed) -> HttpFault:
    """Return the HTTP error for a call to another node that failed. If the other node's handler
    refused the call, its refusal decides status and code."""
    refusal = error.refusal
    if refusal is None or not refusal.status:
        return faults.records_elsewhere(error.why, str(error), error.waited_s)
    return HttpFault(
        refusal.status,
        refusal.code,
        refusal.message,
        refusal.field,
        refusal.retry_after_s,
    )


def call_refusal(error: ShoalError) -> CallRefusal:
    """Return the refusal of a call whose handler raised `error`. `call_failed` converts the refusal
    back to an HTTP error on the calling node."""
    if not isinstance(error, HttpFaultRaised):
        return plain_refusal(error)
    fault = error.fault
    return CallRefusal(
        message=fault.message,
        status=fault.status,
        code=fault.code,
        field=fault.field,
        retry_after_s=fault.retry_after_s,
    )
