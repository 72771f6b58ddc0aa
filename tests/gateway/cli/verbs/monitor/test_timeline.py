"""`shoal timeline`: every line of the page runs as printed; a group's trouble is told in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.verbs.monitor.timeline import PATH
from tests.harness.gateway_testbed import GatewayTestbed, gateway_testbed
from tests.harness.node_server import serving
from tests.harness.typed_lines import examples, typed

HEAD = {"node": "n2", "name": "kelp", "process": "runner:00", "pid": 9, "instance": "i"}
RUNNER = {
    **HEAD, "generation": 1, "rank": 1, "model": "tiny", "phase": "ready", "step": 12,
    "silent_s": 5.0, "halted": True, "ended_at_s": None, "exit_code": None, "message": "",
    "stacks": {"threads": [{"name": "main"}]}, "last": {"at_s": 4.0, "phase": "steps"},
}  # fmt: skip
MEMORY = {"active_bytes": 5_000_000, "cache_bytes": 0, "peak_bytes": 1, "limit_bytes": 1}
ENTRIES = [
    {**HEAD, "generation": 1, "rank": 1, "at_s": float(at_s), "phase": "steps", "since_s": 1.0,
     "step": 10 + at_s, "memory": MEMORY, "error_s": 0.0004}
    for at_s in (3, 4)
]  # fmt: skip
TOLD = {
    "asked": "n1", "runners": [RUNNER], "timeline": ENTRIES,
    "clocks": [
        {"node": "n1", "name": "reef", "offset_s": 0.0, "error_s": 0.0},
        {"node": "n2", "name": "kelp", "offset_s": -0.0123, "error_s": 0.0004},
        {"node": "n4", "name": "crab", "offset_s": None, "error_s": None},
    ],
    "behind": [{**HEAD, "generation": 1, "rank": 1, "model": "tiny", "ended_at_s": None,
                "why": "it is halted"}],
    "unreached": [
        {"node": "n3", "name": "eel", "why": "down", "message": "node eel is not there",
         "ranks": [{"model": "tiny", "rank": 2}]},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def made() -> Iterator[GatewayTestbed]:
    with gateway_testbed(node_name="desk") as found:
        yield found


@pytest.mark.parametrize("line", examples("timeline"))
def test_each_line_of_the_page_runs_as_printed(
    made: GatewayTestbed, tmp_path: Path, line: str
) -> None:
    found = typed(made, tmp_path, line)
    assert found.returncode == 0, found.stderr
    if "--json" in line:
        told = json.loads(found.stdout)
        assert [one["name"] for one in told["unreached"]] == ["desk"], "it has no worker"
    else:
        assert "desk" in found.stderr and "no runner" in found.stderr


def test_who_stands_behind_and_who_was_not_reached_is_said_above_the_entries(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    def answer(_method: str, path: str, _body: dict[str, Any]) -> tuple[int, Any]:
        asked.append(path)
        return 200, TOLD

    with serving(answer) as url:
        server: Any = type("Server", (), {"url": url})
        found = typed(server, tmp_path, "shoal timeline tiny -n 1 --node kelp")
    assert found.returncode == 0, found.stderr
    assert f"{PATH}?model=tiny&node=kelp" in asked
    assert "rank 1 of tiny on kelp is behind: it is halted" in found.stderr
    assert "node eel is not there; its ranks: tiny rank 2" in found.stderr
    assert "1 earlier" in found.stderr
    assert "step=14" in found.stdout and "step=13" not in found.stdout
    assert "halted" in found.stdout and "5.0 MB" in found.stdout
    assert "the clock of kelp is 12.3 ms behind this node's, +/- 0.4 ms" in found.stderr
    assert "the clock of crab was not measured: its times are not corrected" in found.stderr
    assert "clock of reef" not in found.stderr and "error" not in found.stdout
