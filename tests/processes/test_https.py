"""A real node that speaks HTTPS, and the command line beside it, as its operator meets them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.harness.certificates import TlsPairOnDisk, put, served_at
from tests.harness.nodes import MODEL, Node, answered, eventually, running_node

pytestmark = pytest.mark.nodes
WITHIN_S = 2.0
"""What is promised of a pair that replaces another; the tests bear three times as much."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> TlsPairOnDisk:
    return TlsPairOnDisk(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def node(pair: TlsPairOnDisk) -> Iterator[Node]:
    with running_node(**pair.settings()) as made:
        yield made


def check(node: Node) -> dict[str, Any]:
    """What `shoal doctor` says of HTTPS."""
    found = json.loads(node.shoal("doctor", "--json").stdout)["checks"]
    return {one["name"]: one for one in found}["https"]


def test_the_command_line_speaks_https_with_its_own_node(node: Node) -> None:
    status = json.loads(node.shoal("status", "--json").stdout)
    assert status["url"] == node.url == f"https://127.0.0.1:{node.base_port}"
    assert status["answers"]
    assert f"already running at {node.url}" in node.shoal("up").stdout
    assert node.shoal("run", MODEL, "What is shoal?", "--temperature", "0").stdout.strip()
    assert MODEL in node.shoal("ps").stdout
    found = check(node)
    assert found["level"] == "ok" and "until 20" in found["found"]
    checks = json.loads(node.shoal("doctor", "--json").stdout)["checks"]
    said = {one["name"]: one["level"] for one in checks}
    assert said["HTTP API"] == "ok"


def test_at_another_address_the_command_line_trusts_what_it_is_told_to(
    node: Node, pair: TlsPairOnDisk
) -> None:
    untold = node.shoal("ps", "--url", node.url)
    assert untold.returncode == 1
    assert f"the certificate of {node.url} is not trusted" in untold.stderr
    assert "--ca FILE" in untold.stderr
    assert MODEL in node.shoal("ps", "--url", node.url, "--ca", str(pair.certificate)).stdout
    node.env["SSL_CERT_FILE"] = str(pair.certificate)
    assert MODEL in node.shoal("ps", "--url", node.url).stdout
    del node.env["SSL_CERT_FILE"]
    no_file = node.shoal("ps", "--url", node.url, "--ca", str(pair.folder / "none"))
    assert no_file.returncode == 2 and "--ca" in no_file.stderr
    plain = node.shoal("ps", "--url", node.url.replace("https:", "http:"))
    assert plain.returncode == 1 and "this port speaks HTTPS" in plain.stderr


def test_openais_client_asks_a_real_model_over_https(node: Node, pair: TlsPairOnDisk) -> None:
    with httpx.Client(verify=pair.trust(), timeout=60) as http:
        client = OpenAI(base_url=f"{node.url}/v1", api_key="none", http_client=http)
        asked: Any = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "List the integers from 1 to 30."}],
            "temperature": 0,
        }
        pieces = client.chat.completions.create(**asked, stream=True)
        text = "".join(one.choices[0].delta.content or "" for one in pieces if one.choices)
    assert text.strip().endswith("30")


@pytest.mark.proof
def test_an_expired_pair_is_taken_while_a_stream_runs_and_told_everywhere(
    node: Node, pair: TlsPairOnDisk, tmp_path: Path
) -> None:
    expired = TlsPairOnDisk(tmp_path, days=-3)
    stream = node.stream("Tell me a long story.", max_tokens=3000, ignore_eos=True).flowing()
    pair.become(expired)
    shown = expired.certificate.read_text()
    eventually(lambda: served_at(node.base_port) == shown, 3 * WITHIN_S, "it serves")
    words = "the HTTPS certificate expired on"
    eventually(lambda: words in node.shoal("status").stdout, 30, "told")
    found = answered(lambda: check(node), lambda one: one["level"] == "warn", "doctor warns")
    assert "expired on" in found["found"]

    def is_logged() -> bool:
        lines = node.log_lines("gateway")
        return any(line["message"].startswith(words) for line in lines)

    eventually(is_logged, 30, "it is logged")
    stream.wait(120)
    assert stream.ends == 1 and stream.error is None


def test_a_broken_replacement_is_told_and_the_node_goes_on(node: Node, pair: TlsPairOnDisk) -> None:
    shown, key = served_at(node.base_port), pair.key.read_text()
    put(pair.key, "rubbish\n")
    eventually(lambda: "contains no PEM private key" in node.shoal("status").stdout, 30, "told")
    found = answered(lambda: check(node), lambda one: one["level"] == "error", "doctor says so")
    assert "contains no PEM private key" in found["found"]
    assert served_at(node.base_port) == shown
    assert MODEL in node.shoal("ps").stdout
    put(pair.key, key)
    eventually(lambda: "contains no PEM" not in node.shoal("status").stdout, 30, "it is over")


def test_a_node_does_not_come_up_with_a_wrong_pair_and_says_why(
    node: Node, pair: TlsPairOnDisk
) -> None:
    assert node.down().returncode == 0
    put(pair.certificate, "rubbish\n")
    up = node.shoal("up", "--base-port", str(node.base_port))
    assert up.returncode == 1
    assert "http_tls_cert and http_tls_key" in up.stderr and "no PEM certificate" in up.stderr
    assert not node.all_processes()
