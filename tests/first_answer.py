"""One node, from nothing to its first answer: the part of `make test-fast` that has a node. No
other part collects this file; many tests there show the same."""

from __future__ import annotations

from tests.harness.nodes import running_node


def test_a_node_comes_up_and_answers() -> None:
    with running_node() as node:
        said = node.chat("What is shoal?").json()["choices"][0]
        assert said["message"]["content"].startswith("Shoal runs large language models")
        done = node.shoal("ps")
        assert done.returncode == 0 and "shoal-tiny" in done.stdout, done.stderr
