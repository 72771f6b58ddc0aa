"""The Python clients that people have, each in an environment of its own, against a running node.

Each client's story (`tests/clients/stories/`) makes its calls and tells of each; here all passed.
An environment that is not inside the cache is installed from PyPI, which takes longer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.conftest import Tell
from tests.harness.client_stories import failed

CALLS = {
    "openai-agents": 17,
    "litellm": 33,
    "langchain": 51,
    "pydantic-ai": 24,
    "instructor": 12,
    "llama-index": 23,
    "aider": 4,
}
"""How many calls each story makes: one that is lost is seen."""
BRIEF = ("openai-agents",)
"""Which are told in each test run; `make prove-clients` tells all."""


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in BRIEF else pytest.mark.proof) for one in CALLS]
)
def test_every_call_of_a_client_passes(tell: Tell, name: str, tmp_path: Path) -> None:
    rows = tell(name, tmp_path)
    assert failed(rows) == []
    assert len(rows) == CALLS[name]
