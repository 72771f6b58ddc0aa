"""`shoal clients`, over a gateway with profiles; each line of its page runs as printed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.models.tasks import read_clients
from gateway.cli.verbs.cluster.clients import client_row, profile_words
from tests.harness.gateway_testbed import ROOT, GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import chat, ready
from tests.harness.typed_lines import examples, typed

PAGE = ROOT / "docs" / "operations" / "clients.md"
SAMPLE = next(iter(re.findall(r"```\n(\[clients.+?)```", PAGE.read_text(), re.DOTALL)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayTestbed]:
    file = tmp_path_factory.mktemp("config") / "clients.toml"
    file.write_text(SAMPLE)
    with gateway_testbed(clients_file=str(file)) as found:
        found.runner()
        eventually(lambda: ready(found), 10, "the instance is ready")
        for client in ("ann", "notes-app", "notes-app"):
            assert chat(found, "tokens=4", x_client_id=client, x_cooldown=0).status_code == 200
        yield found


def test_the_profiles_of_the_page_are_such() -> None:
    assert len(read_clients(SAMPLE).clients) == 2


@pytest.mark.parametrize("line", examples("clients"))
def test_each_line_of_the_page_runs_as_printed(
    made: GatewayTestbed, tmp_path: Path, line: str
) -> None:
    found = typed(made, tmp_path, line)
    assert found.returncode == 0, found.stderr
    if "--json" in line:
        told = {one["client"]: one for one in json.loads(found.stdout)["clients"]}
        assert told["notes-app"]["requests"] == 2
        return
    rows = {row.split()[0]: row.split() for row in found.stdout.splitlines() if row.strip()}
    assert rows["notes-app"][1:8] == ["client", "id", "2", "-", "-", "7", "4"]
    assert "keep_alive_most_s 600" in found.stdout
    assert rows["192.168.1.20"][1:3] == ["never", "seen"]


def test_a_client_that_rests_says_how_long() -> None:
    row = {
        "client": "calm", "known_by": "key", "requests": 1500, "refused": 2, "failed": 1,
        "mean_prompt_tokens": 12.6, "mean_completion_tokens": 0.0, "last_seen_at_s": 100.0,
        "waiting": 3, "rests_s": 4.2, "profile": {"cooldown_s": 5.0, "priority": 20},
    }  # fmt: skip
    assert client_row(row, 160.0) == (
        "calm", "key", "1.5k", "2", "1", "13", "-", "60 s ago", "3", "4 s",
        "cooldown_s 5, priority 20",
    )  # fmt: skip
    assert profile_words(None) == "-" and profile_words({}) == "no settings"
