"""What people use from JavaScript, against a running node: each client's story in Node.js."""

from __future__ import annotations

import pytest

from tests.harness.client_results import by_client, keep
from tests.harness.javascript import Installed, NotInstalled, failures, installed, tell_story
from tests.harness.missing import missing

STORIES = {"openai": 18, "anthropic": 9, "ollama": 10, "ai_sdk": 57}
"""The stories, and how many calls each one tells of."""
BRIEF = ("openai",)
"""Which are told in each test run; `make prove-clients` tells all."""
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def environment() -> Installed:
    """The clients, installed; where that cannot be, it is said in words."""
    try:
        return installed("npm")
    except NotInstalled as problem:
        missing(problem)


@pytest.mark.parametrize(
    "story",
    [pytest.param(one, marks=() if one in BRIEF else pytest.mark.proof) for one in STORIES],
)
def test_every_call_of_a_client_for_javascript_works(
    story: str, environment: Installed, node_url: str, model: str
) -> None:
    calls = tell_story(environment, story, node_url, model)
    keep(by_client(calls))
    assert not failures(calls), failures(calls)
    assert len(calls) == STORIES[story]
