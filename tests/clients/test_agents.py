"""Coding agents at work through a gateway: what the model says is written, all else is real."""

from __future__ import annotations

import pytest

from tests.harness.agents import told, why_not
from tests.harness.client_results import by_client, keep
from tests.harness.javascript import NotInstalled, failures, installed
from tests.harness.missing import missing

CALLS = ["answer", "tool loop", "picture", "too long a prompt"]
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module", autouse=True)
def agents_can_run() -> None:
    """Have the agents installed, and a network of their own; where not, it is said in words."""
    reason = why_not()
    try:
        installed("agents")
    except NotInstalled as problem:
        reason = reason or str(problem)
    if reason:
        missing(reason)


@pytest.mark.proof
@pytest.mark.parametrize(
    "name",
    [
        "claude",
        pytest.param("codex", marks=pytest.mark.proof),
        pytest.param("codex-oss", marks=pytest.mark.proof),
    ],
)
def test_an_agent_works_through_a_gateway(name: str) -> None:
    calls = told(name, seconds=300)
    keep(by_client(calls))
    assert not failures(calls), failures(calls)
    assert [call["call"] for call in calls] == CALLS
