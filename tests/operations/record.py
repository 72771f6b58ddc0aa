"""Talks to a real node: records what it exports, as `scrape.prom` beside it.

Run by hand, as `python -m tests.operations.record` in the root of the repository, where metrics
are added or renamed. What one node without sensors does not tell (accelerators, its processor,
links to other nodes, exported traces) is taken from `tests/recorded/data/pages.json`, where
everything has a value.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tests.harness.nodes import MODEL, ROOT, Node, eventually, running_node

SCRAPE = Path(__file__).with_name("scrape.prom")
NEEDED = (
    "shoal_requests_total{", "shoal_http_errors_total{", "shoal_ignored_fields_total{",
    "shoal_model_load_seconds_count{", "shoal_request_queue_time_seconds_count{",
    "shoal_num_requests_running{", "shoal_runner_memory_limit_bytes{",
)  # fmt: skip
"""What has to be told before the scrape is whole."""


def use(node: Node) -> None:
    """Have a node load a model while it looks, answer well, answer with errors, and ignore a
    field."""
    assert node.shoal("stop", MODEL).returncode == 0
    said = [{"role": "user", "content": "Tell me about the sea."}]
    body = {"model": MODEL, "messages": said, "max_tokens": 40, "temperature": 0}
    for _ in range(3):
        node.http.post("/v1/chat/completions", json=body).raise_for_status()
    node.http.post("/v1/chat/completions", json={**body, "no_such_field": 1}).raise_for_status()
    node.http.post("/v1/chat/completions", json={**body, "x_timeout_s": 0.001})
    node.http.post("/v1/chat/completions", json={**body, "model": "no-such-model"})
    node.http.post("/v1/chat/completions", content=b"{")


def scraped(node: Node) -> str:
    """Return what the node exports, once it tells all that is needed."""
    for name in NEEDED:
        eventually(lambda name=name: name in _metrics(node), 60.0, name)
    return _metrics(node)


def whole(text: str) -> str:
    """Add the series of metrics of which this node has none."""
    told = set(re.findall(r"^(shoal_\w+)\{", text, re.MULTILINE))
    named = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    pages = json.loads((ROOT / "tests/recorded/data/pages.json").read_text())
    more: list[str] = []
    for line in pages["/metrics"]["samples"]:
        if line.startswith("# TYPE "):
            is_new = line.split()[2] not in named
        else:
            is_new = line.partition("{")[0] not in told
        more += [line] if is_new else []
    return text + "".join(f"{one}\n" for one in more)


def _metrics(node: Node) -> str:
    return node.http.get("/metrics").raise_for_status().text


def main() -> int:
    """Write the scrape."""
    with running_node(SHOAL_NODE_NAME="reef") as node:
        use(node)
        SCRAPE.write_text(whole(scraped(node)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
