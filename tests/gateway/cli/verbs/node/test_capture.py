"""`shoal capture`, over a gateway whose telemetry, worker and supervisord are not there: there is a
file all the same, it says what is missing, and every line of the page runs as printed."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.cli.output.errors import FAILED
from tests.harness.gateway_testbed import GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import ready
from tests.harness.typed_lines import examples, typed

SETTINGS = {"http_port": {"value": 1, "source": "default"}}
FIELDS = ("what", "why")


@pytest.fixture(scope="module")
def made() -> Iterator[GatewayTestbed]:
    with gateway_testbed(node_name="desk", settings_shown=SETTINGS) as found:
        found.runner()
        eventually(lambda: ready(found), 10, "the instance is ready")
        yield found


def read(path: Path) -> dict[str, Any]:
    """The JSON files of a capture by their names."""
    with tarfile.open(path, mode="r:gz") as tar:
        files = {one.name.removeprefix("shoal-capture/"): tar.extractfile(one) for one in tar}
        return {name: json.load(file) for name, file in files.items() if file is not None}


@pytest.mark.parametrize("line", examples("capture"))
def test_each_line_of_the_page_runs_as_printed(
    made: GatewayTestbed, tmp_path: Path, line: str
) -> None:
    found = typed(made, tmp_path, line)
    assert found.returncode == 0, found.stderr
    (path,) = tmp_path.glob("*.tar.gz")
    assert path.stat().st_mode & 0o077 == 0
    (node,) = read(path)["manifest.json"]["nodes"]
    assert (node["name"], node["reached"]) == ("desk", True)
    if "--json" in line:
        told = json.loads(found.stdout)
        assert (told["bytes"], told["nodes"]) == (path.stat().st_size, [node])
    else:
        assert path.name in found.stdout


def test_what_does_not_answer_is_named_and_the_rest_is_there(
    made: GatewayTestbed, tmp_path: Path
) -> None:
    assert typed(made, tmp_path, "shoal capture -o it.tar.gz").returncode == 0
    found = read(tmp_path / "it.tar.gz")
    assert found["desk/config.json"] == SETTINGS
    assert found["desk/node.json"]["node"] == "n1"
    assert found["desk/versions.json"]["packages"]["falcon"]
    missing = [
        tuple(one[field] for field in FIELDS)
        for one in found["manifest.json"]["nodes"][0]["missing"]
    ]
    whats = [what for what, _ in missing]
    assert "processes.json" in whats and whats.count("node.json") >= 2
    whys = " ".join(why for _, why in missing)
    assert "telemetry sends no readings" in whys and "no data about" in whys


def test_an_unknown_node_is_refused_with_those_that_there_are(
    made: GatewayTestbed, tmp_path: Path
) -> None:
    found = typed(made, tmp_path, "shoal capture --node attic")
    assert found.returncode == FAILED, found.stderr
    assert "no node 'attic'; it has desk" in found.stderr
    assert list(tmp_path.glob("*.tar.gz")) == []


def test_a_place_that_cannot_be_written_is_named(made: GatewayTestbed, tmp_path: Path) -> None:
    found = typed(made, tmp_path, "shoal capture -o no/such/folder.tar.gz")
    assert found.returncode == FAILED
    assert "no/such/folder.tar.gz: No such file" in found.stderr


@pytest.mark.parametrize(
    ("body", "field"), [({"node": "desk"}, "node"), ({"nodes": "desk"}, "nodes")]
)
def test_a_body_that_says_something_else_is_refused_by_its_field(
    made: GatewayTestbed, body: dict[str, Any], field: str
) -> None:
    answer = httpx.post(f"{made.url}/v1/diagnostics/capture", json=body, timeout=30)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field


def test_the_cluster_is_told_node_by_node(made: GatewayTestbed) -> None:
    url = f"{made.url}/v1/diagnostics/cluster"
    for query in ("", "?node=desk", "?node=n1"):
        told = httpx.get(url + query, timeout=30).json()
        (node,) = told["nodes"]
        assert (node["name"], node["reached"], told["asked"]) == ("desk", True, "n1")
        assert node["diagnostics"]["runtime"]["packages"]["falcon"]
    refused = httpx.get(url + "?node=attic", timeout=30)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "node")
