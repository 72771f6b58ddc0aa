"""A process holds no more of all bodies together than it may."""

from __future__ import annotations

import pytest

from gateway.dialects.faults import HttpFaultRaised
from gateway.requests.body_budget import BodyBudget


def test_what_was_given_back_can_be_taken_again_and_no_more() -> None:
    budget = BodyBudget(10)
    budget.take(6)
    with pytest.raises(HttpFaultRaised) as refused:
        budget.take(5)
    assert (refused.value.fault.status, refused.value.fault.code) == (503, "overloaded")
    assert refused.value.fault.retry_after_s is not None
    budget.take(4)
    budget.give_back(6)
    budget.take(6)
    assert budget.held_bytes == 10
