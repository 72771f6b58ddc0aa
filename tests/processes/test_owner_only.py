"""A node whose HTTP answers its owner alone."""

from __future__ import annotations

import stat
from collections.abc import Iterator

import httpx
import pytest

from tests.harness.nodes import MODEL, Node, eventually, running_node


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with running_node(SHOAL_HTTP_OWNER_ONLY="true") as made:
        yield made


def test_only_who_reads_the_owner_s_file_is_answered(node: Node) -> None:
    file = node.home / "state" / "http-token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = file.read_text().strip()
    assert node.http.get("/health").status_code == 200
    for key in (None, "sk-other", token[:-1], file.with_name("node-id").read_text().strip()):
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        for path in ("/state", "/v1/models", "/metrics"):
            answer = httpx.get(node.url + path, headers=headers)
            assert answer.status_code == 401, (key, path, answer.text)
    told = httpx.get(node.url + "/state", headers={"Authorization": f"Bearer {token}"})
    assert told.status_code == 200
    assert token not in told.text


def test_the_command_line_needs_no_key_for_its_own_node(node: Node) -> None:
    eventually(lambda: MODEL in node.shoal("ps").stdout, 60, "the model runs")
    said = node.shoal("run", MODEL, "Hello")
    assert said.returncode == 0 and said.stdout.strip(), said.stderr
    doctor = node.shoal("doctor")
    assert "401" not in doctor.stdout + doctor.stderr
    elsewhere = node.shoal("ls", "--url", node.url)
    assert elsewhere.returncode != 0 and "http-token" in elsewhere.stderr
    shown = node.shoal("config", "show")
    assert (node.home / "state" / "http-token").read_text().strip() not in shown.stdout


@pytest.mark.proof
def test_the_token_stays_the_same(node: Node) -> None:
    file = node.home / "state" / "http-token"
    before = file.read_text()
    assert node.down().returncode == 0
    node.up()
    assert file.read_text() == before
    assert node.shoal("ls").returncode == 0
