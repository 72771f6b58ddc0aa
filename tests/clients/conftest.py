"""Where the official clients find a node: `SHOAL_TEST_URL`, or the one that all files share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from rich.console import Console
from rich.table import Table

from tests.harness.client_environments import Unavailable
from tests.harness.client_results import HEADS, by_client, cells, keep
from tests.harness.client_stories import Row, tell_story
from tests.harness.missing import missing
from tests.harness.nodes import ROOT, Node
from tests.harness.shared_nodes import lent, one_at_a_time, shared_node

__all__ = ["lent", "one_at_a_time", "shared_node"]

PROVING = bool(os.environ.get("SHOAL_PROVE"))
Tell = Callable[..., list[Row]]


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest) -> Node | None:
    """The node that the files share; None where `SHOAL_TEST_URL` names another."""
    if os.environ.get("SHOAL_TEST_URL"):
        return None
    if not any((ROOT / "conf").rglob("*.safetensors")):
        pytest.skip("the bundled model is not here; SHOAL_TEST_URL can name a node that has one")
    return request.getfixturevalue("shared_node")


@pytest.fixture(scope="module")
def node_url(node: Node | None) -> str:
    """The root of a running node that serves `model`, without a slash at its end."""
    return os.environ["SHOAL_TEST_URL"].rstrip("/") if node is None else node.url


@pytest.fixture(scope="session")
def model() -> str:
    """The model to talk to."""
    return os.environ.get("SHOAL_TEST_MODEL", "shoal-tiny")


@pytest.fixture(scope="module")
def client(node_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{node_url}/v1", api_key="none", max_retries=0, timeout=90) as made:
        yield made


@pytest.fixture(scope="module")
def ask(client: OpenAI, model: str) -> Callable[..., Any]:
    """A chat completion of one question, greedy and without thinking unless told otherwise."""

    def asked(question: str, **more: Any) -> Any:
        fields: dict[str, Any] = {"temperature": 0, "reasoning_effort": "none", **more}
        if "max_completion_tokens" not in more:
            fields.setdefault("max_tokens", 300)
        messages: Any = [{"role": "user", "content": question}]
        return client.chat.completions.create(model=model, messages=messages, **fields)

    return asked


@pytest.fixture(scope="session")
def client_calls() -> Iterator[list[Row]]:
    """What came of each call of the clients' stories; at the end its table is printed and kept."""
    calls: list[Row] = []
    yield calls
    if calls:
        rows = by_client(calls)
        keep(rows)
        table = Table(*HEADS)
        for row in rows:
            table.add_row(*cells(row))
        Console(width=170).print(table)


@pytest.fixture(scope="module")
def tell(node_url: str, model: str, client_calls: list[Row]) -> Tell:
    """Tell a client's story in a folder to the node, or to another URL; `missing` where the
    client cannot be installed here."""

    def told(name: str, folder: Path, url: str = node_url) -> list[Row]:
        try:
            rows = tell_story(name, url=url, model=model, folder=folder)
        except Unavailable as reason:
            missing(reason)
        client_calls.extend(rows)
        return rows

    return told
