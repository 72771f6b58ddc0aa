"""API keys of a cluster of two real nodes: taken and refused everywhere at once, limited as one,
rotated under running streams, and in no file."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.harness.clusters import Cluster
from tests.harness.nodes import MODEL, Node, answered, eventually

WITHIN_S = 1.0
"""What is promised; the tests bear three times as much, and print what it was."""
STREAMS = 6
RPM = 30


@pytest.fixture(scope="module")
def cluster(shared_pair: Cluster) -> Iterator[Cluster]:
    shared_pair.place()
    yield shared_pair
    shared_pair.clear()


def apikey(node: Node, *words: str) -> Any:
    """`shoal apikey` as the owner of this node's home types it; what it says in JSON."""
    done = node.shoal("apikey", *words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def status(node: Node, key: str | None, path: str = "/v1/models") -> int:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return node.http.get(path, headers=headers).status_code


def chat(node: Node, key: str, **more: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    headers = {"Authorization": f"Bearer {key}"}
    return node.http.post("/v1/chat/completions", json={**body, **more}, headers=headers)


def seconds_until(cluster: Cluster, key: str | None, wanted: int, since_at: float) -> float:
    eventually(
        lambda: all(status(node, key) == wanted for node in cluster.nodes),
        3 * WITHIN_S,
        f"{wanted} at every node",
    )
    return time.monotonic() - since_at


def holds(node: Node, secret: str) -> list[str]:
    """The files of a home that have a text in them."""
    found: list[str] = []
    for folder, _, names in os.walk(node.home):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    if secret.encode() in file.read():
                        found.append(path)
    return found


def test_a_key_of_one_node_is_every_nodes_within_a_second_and_so_is_its_end(
    cluster: Cluster,
) -> None:
    first, second = cluster.nodes
    assert status(second, None) == 200, "without keys none is asked for"
    secret = apikey(first, "add", "alice", "--expires", "30d")["key"]
    added_at = time.monotonic()
    taken_s = seconds_until(cluster, secret, 200, added_at)
    asked_s = seconds_until(cluster, None, 401, added_at)
    assert status(second, secret, "/state") == 403
    assert chat(second, secret).status_code == 200
    listed = apikey(second, "ls")["keys"]
    assert [one["name"] for one in listed] == ["alice"] and secret not in json.dumps(listed)
    assert apikey(first, "ls")["keys"][0]["id"] == listed[0]["id"]
    doctor = second.shoal("doctor")
    assert "1 in the cluster" in doctor.stdout.replace("\n", " "), doctor.stdout
    assert apikey(second, "add", "bob", "--scope", "admin")["was_asked_for"] is True
    gone = apikey(second, "rm", "alice")
    removed_at = time.monotonic()
    assert gone["name"] == "alice"
    refused_s = seconds_until(cluster, secret, 401, removed_at)
    print(
        f"taken by both nodes {taken_s:.3f} s after `add` came back, asked for {asked_s:.3f} s, "
        f"refused {refused_s:.3f} s after `rm` did"
    )
    missing = first.shoal("apikey", "rm", "alice")
    assert missing.returncode == 4 and "bob" in missing.stderr
    apikey(first, "rm", "bob")
    seconds_until(cluster, None, 200, time.monotonic())


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_a_rotation_lets_streams_run_on_and_no_file_ever_has_a_secret(cluster: Cluster) -> None:
    first, second = cluster.nodes
    made = apikey(first, "add", "turns")
    old = made["key"]
    seconds_until(cluster, old, 200, time.monotonic())
    ends: list[str] = []
    begun = threading.Semaphore(0)

    def read(number: int) -> None:
        node = cluster.nodes[number % 2]
        body = {
            "model": MODEL, "stream": True, "max_tokens": 800, "min_tokens": 800, "temperature": 0,
            "messages": [{"role": "user", "content": "List the integers from 1 to 200."}],
        }  # fmt: skip
        headers = {"Authorization": f"Bearer {old}"}
        with (
            httpx.Client(base_url=node.url, timeout=120) as client,
            client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer,
        ):
            told = f"{answer.status_code} "
            for count, line in enumerate(answer.iter_lines()):
                if count == 2:
                    begun.release()
                told += line if "[DONE]" in line or '"error"' in line else ""
            ends.append(told)

    readers = [threading.Thread(target=read, args=(number,)) for number in range(STREAMS)]
    for reader in readers:
        reader.start()
    for _ in readers:
        assert begun.acquire(timeout=60)
    ended_before = len(ends)
    turned = apikey(second, "rotate", "turns")
    turned_at = time.monotonic()
    assert (turned["id"], turned["key"] != old) == (made["id"], True)
    refused_s = seconds_until(cluster, old, 401, turned_at)
    taken_s = seconds_until(cluster, turned["key"], 200, turned_at)
    ended_meanwhile = len(ends)
    for reader in readers:
        reader.join(120)
    assert len(ends) == STREAMS
    assert all(end.startswith("200 ") and "[DONE]" in end for end in ends), ends
    assert not any('"error"' in end for end in ends), ends
    running, still = STREAMS - ended_before, STREAMS - ended_meanwhile
    print(
        f"rotated while {running} of {STREAMS} streams ran, {still} still ran when the old secret "
        f"was refused by all ({refused_s:.3f} s) and the new one taken ({taken_s:.3f} s); all "
        "finished"
    )
    assert still, "streams ran on without their secret"
    graceful = apikey(first, "rotate", "turns", "--grace", "1h")
    for secret in (turned["key"], graceful["key"]):
        seconds_until(cluster, secret, 200, time.monotonic())
    for node in cluster.nodes:
        for secret in (old, turned["key"], graceful["key"]):
            assert holds(node, secret) == []
        assert holds(node, made["id"]), "while the key's id is in the journal"
    apikey(first, "rm", "turns")


def test_the_sum_over_nodes_is_near_the_limit(cluster: Cluster) -> None:
    secret = apikey(cluster.nodes[0], "add", "busy", "--rpm", str(RPM))["key"]
    seconds_until(cluster, secret, 200, time.monotonic())
    began_at = time.monotonic()

    def ask(number: int) -> int:
        return chat(cluster.nodes[number % 2], secret).status_code

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(3 * RPM)))
    took_s = time.monotonic() - began_at
    admitted = answers.count(200)
    assert set(answers) <= {200, 429}
    print(f"{admitted} of {len(answers)} requests at two nodes in {took_s:.1f} s; {RPM} a minute")
    assert took_s < 60.0, "all of it was one minute's"
    assert RPM <= admitted <= RPM + 12, "what six clients ask at once may come before it is told"
    use = answered(
        lambda: apikey(cluster.nodes[1], "ls")["keys"][0]["use"],
        lambda use: use["requests"] == admitted and use["tokens"] > 0,
        f"another node's gateway knows of {admitted} requests",
    )
    assert use["requests"] == admitted
    apikey(cluster.nodes[0], "rm", "busy")


@pytest.mark.proof
def test_keys_are_there_after_a_restart_of_a_node_and_its_owner_needs_none(
    cluster: Cluster,
) -> None:
    node = cluster.nodes[1]
    secret = apikey(node, "add", "lasting")["key"]
    seconds_until(cluster, secret, 200, time.monotonic())
    assert node.down().returncode == 0
    node.up()
    eventually(lambda: status(node, secret) == 200, 30, "it is known again")
    assert status(node, None) == 401
    assert node.shoal("ps").returncode == 0
    assert node.shoal("ps", "--url", node.url).returncode == 1
    apikey(node, "rm", "lasting")
