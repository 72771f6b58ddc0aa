"""Nodes for the inspection's tests: real ones, used only as a stranger would use them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.nodes import Node, running_node


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """Start a node with the bundled model, shared by the tests of a file."""
    with running_node() as made:
        yield made
