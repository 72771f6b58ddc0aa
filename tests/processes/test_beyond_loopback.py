"""A node that other machines reach: it starts without a key, lets nobody but its owner in, says so,
and is opened by its first key."""

from __future__ import annotations

import json

import httpx

from tests.harness.nodes import MODEL, Node, answered, eventually

WITHIN_S = 3.0
"""Within a second a key is every process's, or no one's any more; three times as much is borne."""


def test_it_answers_its_owner_alone_until_there_is_a_key() -> None:
    node = Node(SHOAL_HTTP_HOST="0.0.0.0")
    try:
        up = node.shoal("up", "--base-port", str(node.base_port))
        assert up.returncode == 0, up.stdout + up.stderr + node.logs()
        assert "shoal apikey add" in up.stderr
        for path in ("/state", "/v1/models", "/metrics", "/apikeys"):
            assert httpx.get(node.url + path).status_code == 401, path
        assert httpx.get(node.url + "/health").json() == {"status": "degraded"}
        assert httpx.get(node.url + "/readyz").status_code == 503
        assert "this node has no API key" in node.shoal("status").stdout.replace("\n", " ")
        doctor = node.shoal("doctor", "--json")
        (found,) = (one for one in json.loads(doctor.stdout)["checks"] if one["name"] == "api keys")
        assert (found["level"], "shoal apikey add" in found["remedy"]) == ("warn", True)
        added = node.shoal("apikey", "add", "alice", "--json")
        assert added.returncode == 0, added.stderr
        headers = {"Authorization": f"Bearer {json.loads(added.stdout)['key']}"}

        def models() -> httpx.Response:
            return httpx.get(node.url + "/v1/models", headers=headers)

        listed = answered(models, lambda one: one.status_code == 200, "the key opens", WITHIN_S)
        assert MODEL in {one["id"] for one in listed.json()["data"]}
        eventually(lambda: httpx.get(node.url + "/readyz").status_code == 200, 30, "it is ready")
        eventually(
            lambda: "no API key" not in node.shoal("status").stdout, 30, "it is told no more"
        )
        assert httpx.get(node.url + "/v1/models").status_code == 401
        node.shoal("apikey", "rm", "alice")
        shut = "without keys it is as closed as at first"
        answered(models, lambda one: one.status_code == 401, shut, WITHIN_S)
    finally:
        node.close()
