"""Jobs on two real nodes: any gateway answers for each of them, a node
that is down is named, and what it had taken goes on when it is back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.clusters import Cluster
from tests.harness.nodes import MODEL, Node, eventually

pytestmark = [pytest.mark.nodes, pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = "List the integers from 1 to 30."
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def pair(shared_pair: Cluster) -> Iterator[Cluster]:
    yield shared_pair
    eventually(shared_pair.formed, PATIENCE_S, "one cluster")
    shared_pair.clear()


def submitted(node: Node, text: str = COUNT, **more: Any) -> str:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0}
    asked = {"path": "/v1/chat/completions", "body": {**body, **more}}
    answer = node.http.post("/v1/jobs", json=asked)
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def told(node: Node, path: str) -> dict[str, Any]:
    answer = node.http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ended(node: Node, path: str) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        answer = node.http.get(path)
        if answer.status_code >= 500:  # one of its HTTP processes is only beginning
            return None
        assert answer.status_code == 200, answer.text
        job = answer.json()
        return None if job["status"] in ("queued", "loading", "running", "in_progress") else job

    return eventually(found, PATIENCE_S, f"{path} ends")


def test_each_job_is_answered_for_by_any_gateway(pair: Cluster) -> None:
    for home in pair.nodes:
        job = submitted(home, stream=False)
        done = ended(home, f"/v1/jobs/{job}")
        assert done["status"] == "done", done
        assert "1, 2, 3" in done["result"]["choices"][0]["message"]["content"]
        for node in pair.nodes * 2:
            assert told(node, f"/v1/jobs/{job}") == done
        elsewhere = next(node for node in pair.nodes if node is not home)
        assert elsewhere.http.delete(f"/v1/jobs/{job}").json()["deleted"] is True
        assert home.http.get(f"/v1/jobs/{job}").status_code == 404


def test_a_response_in_the_background_is_read_and_stopped_at_any_gateway(pair: Cluster) -> None:
    home, *others = pair.nodes
    body = {"model": MODEL, "input": COUNT, "background": True, "temperature": 0}
    name = home.http.post("/v1/responses", json=body).json()["id"]
    done = ended(others[0], f"/v1/responses/{name}")
    assert done["status"] == "completed"
    streams = {
        node.http.get(f"/v1/responses/{name}?stream=true&starting_after=3").text
        for node in pair.nodes
    }
    [stream] = streams
    data = [line[6:] for line in stream.splitlines() if line.startswith("data: ")]
    events = [json.loads(one) for one in data]
    assert events[0]["sequence_number"] == 4 and events[-1]["response"] == done
    long = {**body, "input": "Tell me a long story.", "max_output_tokens": 3000}
    other = home.http.post("/v1/responses", json=long).json()["id"]
    stopped = others[-1].http.post(f"/v1/responses/{other}/cancel", timeout=30).json()
    assert stopped["status"] in ("cancelled", "completed")
    assert told(home, f"/v1/responses/{other}") == stopped


@pytest.mark.proof
def test_a_node_that_is_killed_is_named_and_its_job_goes_on_when_it_is_back(pair: Cluster) -> None:
    home, *others = pair.nodes
    jobs = [submitted(home, x_client_id=f"c{n}") for n in range(8)]
    home.kill()

    def named() -> httpx.Response | None:
        answer = others[0].http.get(f"/v1/jobs/{jobs[-1]}", timeout=20)
        return answer if answer.status_code >= 500 else None

    refused = eventually(named, PATIENCE_S, "the node is missed").json()["error"]
    assert refused["code"] in ("owner_down", "owner_silent"), refused
    assert "node " in refused["message"]
    home.up(180.0)
    for job in jobs:
        done = ended(home, f"/v1/jobs/{job}")
        assert done["status"] == "done" and done["attempts"] <= 2, done
    eventually(
        lambda: others[-1].http.get(f"/v1/jobs/{jobs[0]}").status_code == 200,
        PATIENCE_S,
        "the others find it again",
    )
