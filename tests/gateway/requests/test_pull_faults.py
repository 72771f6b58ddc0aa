"""The errors of failed pulls: whose fault they are, and what they must never say."""

from __future__ import annotations

import pytest

from bus.wire.ids import ModelId
from bus.wire.messages.readings import PullRefusal, PullState
from gateway.dialects.faults import HttpFault
from gateway.requests.pull_faults import PULL_FAULTS, of_pull


def fault_of(reason: PullRefusal | None, retry_after_s: float | None = None) -> HttpFault:
    state = PullState(
        model=ModelId("a/b"), phase="failed", reason=reason, retry_after_s=retry_after_s
    )
    return of_pull(state)


@pytest.mark.parametrize("reason", PULL_FAULTS)
def test_a_hub_that_refuses_access_does_not_make_the_clients_own_key_wrong(
    reason: PullRefusal,
) -> None:
    assert fault_of(reason).status not in (401, 403)


@pytest.mark.parametrize(
    ("reason", "field"),
    [
        ("bad_name", "model"), ("unfit", "model"), ("not_found", "model"),
        ("no_revision", "model"), ("gated", None), ("disk_full", None), ("busy", None),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_pulled_is_the_field_at_fault_and_a_full_disk_is_not(
    reason: PullRefusal, field: str | None
) -> None:
    assert fault_of(reason).field == field


def test_a_retry_is_due_when_the_hub_says_so_or_else_when_it_may_help() -> None:
    assert fault_of("rate_limited", 7.0).retry_after_s == 7.0
    assert fault_of("rate_limited").retry_after_s == 60.0
    assert fault_of("gated").retry_after_s is None


def test_a_failure_without_a_reason_is_our_own() -> None:
    assert (fault_of(None).status, fault_of(None).code) == (500, "internal_error")
