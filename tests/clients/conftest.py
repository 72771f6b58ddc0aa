"""Where the official clients find a node: `SHOAL_TEST_URL`, or one of this session's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.harness.nodes import ROOT, Node, running_node


@pytest.fixture(scope="session")
def node() -> Iterator[Node | None]:
    """A node of this session's own; None where `SHOAL_TEST_URL` names another."""
    if os.environ.get("SHOAL_TEST_URL"):
        yield None
        return
    if not any((ROOT / "conf").rglob("*.safetensors")):
        pytest.skip("the bundled model is not here; SHOAL_TEST_URL can name a node that has one")
    with running_node() as made:
        yield made


@pytest.fixture(scope="session")
def node_url(node: Node | None) -> str:
    """The root of a running node that serves `model`, without a slash at its end."""
    return os.environ["SHOAL_TEST_URL"].rstrip("/") if node is None else node.url


@pytest.fixture(scope="session")
def model() -> str:
    """The model to talk to."""
    return os.environ.get("SHOAL_TEST_MODEL", "shoal-tiny")


@pytest.fixture(scope="session")
def client(node_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{node_url}/v1", api_key="none", max_retries=0, timeout=90) as made:
        yield made


@pytest.fixture(scope="session")
def ask(client: OpenAI, model: str) -> Callable[..., Any]:
    """A chat completion of one question, greedy and without thinking unless told otherwise."""

    def asked(question: str, **more: Any) -> Any:
        fields: dict[str, Any] = {"temperature": 0, "reasoning_effort": "none", **more}
        if "max_completion_tokens" not in more:
            fields.setdefault("max_tokens", 300)
        messages: Any = [{"role": "user", "content": question}]
        return client.chat.completions.create(model=model, messages=messages, **fields)

    return asked
