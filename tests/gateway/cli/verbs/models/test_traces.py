"""`shoal trace`, over a gateway; every line of its page runs as printed."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.harness.gateway_testbed import GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import chat, ready
from tests.harness.traces import check_trace
from tests.harness.typed_lines import examples, typed


@pytest.fixture(scope="module")
def made() -> Iterator[GatewayTestbed]:
    with gateway_testbed() as found:
        found.runner()
        eventually(lambda: ready(found), 10, "the instance is ready")
        chat(found, "tokens=3 every_ms=20", x_trace=True)
        eventually(lambda: kept(found), 5, "a trace")
        yield found


def kept(made: GatewayTestbed) -> list[str]:
    found = httpx.get(f"{made.url}/v1/traces").json()["traces"]
    return [one["request"] for one in found]


@pytest.mark.parametrize("line", examples("trace"))
def test_each_line_of_the_page_runs_as_printed(
    made: GatewayTestbed, tmp_path: Path, line: str
) -> None:
    found = typed(made, tmp_path, line)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip()


def test_there_are_examples_of_each_verb() -> None:
    words = {line.split()[2] for line in examples("trace")}
    assert words == {"on", "off", "ls", "show", "save"}


def test_a_trace_is_shown_as_bars(made: GatewayTestbed, tmp_path: Path) -> None:
    (name, *_) = kept(made)
    found = typed(made, tmp_path, f"shoal trace show {name}")
    lines = found.stdout.splitlines()
    assert name in lines[0]
    assert any("runner" in line and "decode" in line and "###" in line for line in lines)
    assert any("gateway" in line and "first_entry" in line for line in lines)
    listed = typed(made, tmp_path, "shoal trace ls").stdout
    assert name in listed and "asked" in listed


def test_a_saved_file_is_sound_its_owner_s_and_replaces_none_unasked(
    made: GatewayTestbed, tmp_path: Path
) -> None:
    found = json.loads(typed(made, tmp_path, "shoal trace save latest --json").stdout)
    file = tmp_path / found["file"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    check_trace(json.loads(file.read_text()))
    again = typed(made, tmp_path, "shoal trace save latest")
    assert again.returncode == 1 and "choose another file" in again.stderr
    assert typed(made, tmp_path, f"shoal trace save latest -o {file}").returncode == 0


def test_what_is_not_there_is_said(made: GatewayTestbed, tmp_path: Path) -> None:
    found = typed(made, tmp_path, "shoal trace show req-n1-h0-b1-77")
    assert found.returncode == 4 and "no trace of" in found.stderr
