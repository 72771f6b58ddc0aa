"""What the command line says and sends: every word true (C6, C8 to C11 of the inspection)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Any

from tests.harness.node_server import instance, serving
from tests.harness.nodes import TREE

CODE = "import sys; from gateway.cli.app import main; sys.exit(main())"
WORD: list[Any] = [
    {"choices": [{"index": 0, "delta": {"content": "word"}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}},
    "data: [DONE]\n\n",
]


def typed(url: str, *words: str, say: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command line of the inspected tree against the node at `url`, `say` piped in."""
    with tempfile.TemporaryDirectory(prefix="shoal-test-") as home:
        return subprocess.run(
            [sys.executable, "-P", "-c", CODE, *words, "--url", url],
            cwd=home,
            env={**os.environ, "PYTHONPATH": str(TREE), "NO_COLOR": "1", "SHOAL_HOME": home},
            input=say,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def told(index: int, *loaded: Any) -> dict[str, Any]:
    """Return `GET /state` of a node that has read the log up to `index`."""
    instances = {str(one.instance): one.model_dump(mode="json") for one in loaded}
    return {
        "state": {"term": 1, "holder": "n1", "index": index, "instances": instances},
        "node": "n1",
        "holder": "n1",
        "live": True,
        "telemetry": {"nodes": {}, "runners": [], "cards": [], "peers": {}},
        "nodeHealth": {},
    }


def test_c6_what_is_piped_in_follows_the_prompt() -> None:
    asked: list[Any] = []

    def answer(_method: str, _path: str, body: dict[str, Any]) -> Any:
        asked.append(body["messages"])
        return WORD

    with serving(answer) as url:
        both = typed(url, "run", "m", "Summarise this:", say="the tide came in\n")
        alone = typed(url, "run", "m", "hello")
    assert (both.returncode, alone.returncode) == (0, 0), both.stderr + alone.stderr
    said = [one[-1]["content"] for one in asked]
    assert said == ["Summarise this:\n\nthe tide came in", "hello"]


def test_c10_a_model_is_not_called_removed_before_its_placement_is_read() -> None:
    states = [told(3), told(4), told(7, instance("m", "placed")), told(8, instance("m"))]

    def answer(method: str, path: str, _body: dict[str, Any]) -> Any:
        if path == "/place_instance":
            return 200, {"model": "m", "instance": "inst-m", "term": 1, "index": 7}
        return 200, states.pop(0) if len(states) > 1 else states[0]

    with serving(answer) as url:
        found = typed(url, "place", "m")
    assert found.returncode == 0, found.stderr
    assert "m is ready" in found.stdout
