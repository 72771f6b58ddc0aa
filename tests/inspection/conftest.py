"""Nodes for the inspection's tests: real ones, used only as a stranger would use them."""

from __future__ import annotations

import pytest

from tests.harness.nodes import Node
from tests.harness.shared_nodes import (
    lent,
    one_cluster_at_a_time,
    shared_node,
    shared_pair,
    shared_three,
)

__all__ = ["lent", "one_cluster_at_a_time", "shared_node", "shared_pair", "shared_three"]


@pytest.fixture(scope="module")
def node(shared_node: Node) -> Node:
    return shared_node
