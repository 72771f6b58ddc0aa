"""Conversations whose gateways are killed: nothing acknowledged is lost, nothing is there twice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.conversation_kills import ConversationKills
from tests.harness.gateway_testbed import eventually, gateway_testbed
from tests.harness.http_clients import ready

OPTIONS: dict[str, Any] = {"processes": 2, "jobs_running": 8, "jobs_per_client": 10_000}


def killed(points: int, seed: int) -> None:
    with gateway_testbed(**OPTIONS) as testbed:
        testbed.runner()
        eventually(lambda: ready(testbed), 10, "the instance is ready")
        kills = ConversationKills(testbed, OPTIONS, seed)
        for _ in range(points):
            kills.point()
        # a kill may come before any acknowledgement
        assert kills.check() >= points / 5


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_was_acknowledged_is_in_its_conversation_once_after_five_kills() -> None:
    killed(5, seed=31)


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_what_was_acknowledged_is_in_its_conversation_once_after_200_kills() -> None:
    killed(200, seed=5)
