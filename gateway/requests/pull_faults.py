"""The HTTP errors of failed pulls and hub searches.

Pure. A failed pull never answers with 401 or 403, even if the hub refused access. Those statuses
would say that the client's API key for shoal is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bus.wire.messages.gateways import SearchRefused
from bus.wire.messages.readings import PullRefusal, PullState
from gateway.dialects.faults import UNAVAILABLE_RETRY_S, HttpFault


@dataclass(frozen=True, slots=True)
class PullFault:
    """The HTTP status and the error code for a reason of failure, and the retry time in seconds if
    the failure itself names none."""

    status: int
    code: str
    retry_after_s: float | None = None


PULL_FAULTS: Mapping[PullRefusal, PullFault] = {
    "bad_name": PullFault(400, "invalid_value"),
    "offline": PullFault(409, "offline"),
    "unauthorized": PullFault(502, "hub_unauthorized"),
    "gated": PullFault(502, "hub_gated"),
    "not_found": PullFault(404, "hub_model_not_found"),
    "no_revision": PullFault(404, "hub_revision_not_found"),
    "rate_limited": PullFault(429, "hub_rate_limited", 60.0),
    "unreachable": PullFault(502, "hub_unreachable", UNAVAILABLE_RETRY_S),
    "unfit": PullFault(400, "unsupported"),
    "conflict": PullFault(409, "conflict"),
    "disk_full": PullFault(507, "insufficient_storage"),
    "no_giver": PullFault(503, "model_unavailable", UNAVAILABLE_RETRY_S),
    "too_large": PullFault(507, "model_too_large"),
    "spoilt": PullFault(502, "hub_spoilt"),
    "changed": PullFault(502, "hub_changed"),
    "busy": PullFault(429, "queue_full", UNAVAILABLE_RETRY_S),
    "paused": PullFault(409, "pull_paused"),
    "cancelled": PullFault(409, "pull_cancelled"),
    "broken": PullFault(500, "internal_error"),
}


def of_pull(state: PullState | SearchRefused) -> HttpFault:
    """Return the fault for a failed pull or a failed hub search."""
    row = PULL_FAULTS[state.reason or "broken"]
    field = "model" if row.status in (400, 404) else None
    again_s = row.retry_after_s if state.retry_after_s is None else state.retry_after_s
    return HttpFault(row.status, row.code, state.message, field, again_s)
