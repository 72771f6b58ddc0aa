"""What a node gives away, and to whom: keys, files, words without a key."""

from __future__ import annotations

import contextlib
import dataclasses
import stat

import httpx
import openai
import psutil
import pytest

from bus.process.endpoints import Endpoints
from bus.wire.ids import NodeId
from gateway.view.options import Options
from tests.harness.nodes import MODEL, Node, eventually
from tests.harness.shared_nodes import KEYS

KEY, OTHER = KEYS


@pytest.fixture(scope="module")
def keyed(shared_keyed: Node) -> Node:
    return shared_keyed


def test_where_a_name_only_begins_like_loopback_a_key_is_asked_for() -> None:
    options = Options(NodeId("n1"), "n", Endpoints("/run"), "/run")
    assert not options.asks_for_keys
    assert dataclasses.replace(options, host="127.evil.example").asks_for_keys


def test_health_without_a_key_says_only_that_somebody_is_here(keyed: Node) -> None:
    stranger = httpx.get(keyed.url + "/health")
    assert stranger.status_code == 200
    assert set(stranger.json()) == {"status"}, stranger.json()
    known = httpx.get(keyed.url + "/health", headers={"Authorization": f"Bearer {KEY}"})
    assert known.json()["node"] == keyed.node_id()


def test_no_process_of_a_node_keeps_a_key_in_its_environment(keyed: Node) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    eventually(
        lambda: httpx.get(keyed.url + "/readyz", headers=headers).status_code == 200, 30, "ready"
    )
    found: dict[str, list[str]] = {}
    for process in keyed.all_processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            of = process.environ()
            found[process.name()] = [
                name for name, value in of.items() if KEY in value or OTHER in value
            ]
    assert found and not any(found.values()), found


def test_files_of_a_node_are_its_users_alone(keyed: Node) -> None:
    modes = {
        str(path.relative_to(keyed.home)): stat.filemode(path.stat().st_mode)
        for path in keyed.home.rglob("*")
        if path.is_file()
        and path.suffix in (".log", ".json", ".conf")
        and "models" not in path.parts
    }
    assert any(name.endswith("supervisord.log") for name in modes), modes
    assert {mode[4:] for mode in modes.values()} == {"------"}, modes


def test_a_readable_key_in_the_settings_is_told_at_the_start_and_by_doctor() -> None:
    node = Node()
    try:
        config = node.home / "config" / "shoal.toml"
        config.parent.mkdir(parents=True)
        config.write_text(f'api_keys = ["{KEY}"]\n')
        config.chmod(0o644)
        said = node.shoal("doctor")
        assert f"chmod 600 {config}" in said.stdout.replace("\n", ""), said.stdout
        config.chmod(0o600)
        said = node.shoal("doctor")
        assert "chmod 600" not in said.stdout, said.stdout
    finally:
        node.close()


def _cached(node: Node, key: str, text: str) -> int:
    body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.post(node.url + "/v1/chat/completions", json=body, headers=headers, timeout=60.0)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_prefix_is_kept_for_the_key_that_asked_and_for_no_other(keyed: Node) -> None:
    headers = {"Authorization": f"Bearer {KEYS[0]}"}
    eventually(
        lambda: httpx.get(keyed.url + "/readyz", headers=headers).status_code == 200, 30, "ready"
    )
    text = "The harbour lights went out one by one while the tide came in. " * 20
    assert _cached(keyed, KEYS[0], text) == 0
    assert eventually(lambda: _cached(keyed, KEYS[0], text), 30, "its own prefix is used") > 0
    assert _cached(keyed, KEYS[1], text) == 0, "another key's prompt is told by cached_tokens"
    assert eventually(lambda: _cached(keyed, KEYS[1], text), 30, "its own prefix is used") > 0


def test_a_wrong_key_is_refused_in_the_words_that_it_knows(keyed: Node) -> None:
    with (
        openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        stranger.models.list()
    assert caught.value.code == "invalid_api_key"
