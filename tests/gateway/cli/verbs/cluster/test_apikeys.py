"""`shoal apikey`, over a gateway; every line of its page runs as printed."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.access import hashed
from gateway.cli.output.errors import CliError
from gateway.cli.verbs.cluster.apikeys import seconds_of
from tests.harness import typed_lines
from tests.harness.gateway_testbed import GatewayTestbed, gateway_testbed

OWNER = "sk-of-the-owner"
SECRET = re.compile(r"sk-shoal-[\w-]{43}")


@pytest.fixture
def made() -> Iterator[GatewayTestbed]:
    with gateway_testbed(owner_key=hashed(OWNER)) as found:
        yield found


def typed(made: GatewayTestbed, home: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line against the gateway, as its owner."""
    return typed_lines.typed(made, home, line, SHOAL_API_KEY=OWNER, COLUMNS="200")


def test_each_line_of_the_page_runs_as_printed_and_says_what_it_did(
    made: GatewayTestbed, tmp_path: Path
) -> None:
    lines = typed_lines.examples("apikey")
    said = {line: typed(made, tmp_path, line) for line in lines}
    assert len(said) == len(lines) >= 8
    for line, found in said.items():
        assert found.returncode == 0, (line, found.stderr)
        shows = " add " in line or " rotate " in line
        assert len(SECRET.findall(found.stdout)) == shows, (line, found.stdout)
    first, second = list(said.values())[:2]
    assert "EVERY node" in first.stderr and "warning" in first.stderr
    assert "EVERY node" not in second.stderr
    table = said["shoal apikey ls"].stdout
    assert "0 of 60" in table and "0 of 2000000" in table and "0 of 4" in table
    assert "valid for 1 h" in said[("shoal apikey rotate ci --grace 1h")].stderr.replace(
        "60 min", "1 h"
    )
    left = json.loads(said["shoal apikey ls --json"].stdout)["keys"]
    assert [one["name"] for one in left] == ["ci", "ops"]
    assert left[0]["old_until_s"] and left[1]["old_until_s"] is None
    assert typed(made, tmp_path, "shoal apikey rm ci").stderr == ""
    last = typed(made, tmp_path, "shoal apikey rm ops")
    assert "warning: no API key is left" in last.stderr


def test_what_cannot_be_is_said_with_its_exit_code(made: GatewayTestbed, tmp_path: Path) -> None:
    for line, code, words in (
        ("shoal apikey rm nobody", 4, "the keys are: none"),
        ("shoal apikey rotate nobody", 4, "the keys are: none"),
        ("shoal apikey add a --expires soon", 2, "--expires: 'soon'"),
        ("shoal apikey add a --scope root", 2, "root"),
        ("shoal apikey add 'two words'", 1, "is not a valid API key name"),
    ):
        found = typed(made, tmp_path, line)
        assert (found.returncode, words in found.stderr) == (code, True), (line, found.stderr)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30d", 2_592_000.0), ("12h", 43_200.0), ("1.5m", 90.0), ("90s", 90.0)],
)
def test_a_span_is_a_number_and_its_unit(text: str, seconds: float) -> None:
    assert seconds_of(text, "--expires") == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "0d", "-1d", "1w", "1d2h", "1e3s"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(CliError, match="--grace"):
        seconds_of(text, "--grace")
