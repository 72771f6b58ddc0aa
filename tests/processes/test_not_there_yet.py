"""What is promised and not there says so: paths that clients know."""

from __future__ import annotations

import pytest

from tests.harness.nodes import Node


@pytest.mark.parametrize("path", ["/v1/batches", "/v1/responses/compact"])
def test_a_path_that_is_to_come_answers_unlike_a_misspelt_one(node: Node, path: str) -> None:
    misspelt = node.http.get("/v1/batchs")
    answer = node.http.post(path, json={})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (404, "not_there_yet"), answer.text
    assert path in error["message"] and "not available yet" in error["message"]
    assert misspelt.json()["error"]["code"] == "not_found"


def test_a_path_of_another_dialect_answers_in_its_words(node: Node) -> None:
    answer = node.http.post("/v1/messages/batches", json={"requests": []})
    said = answer.json()
    assert answer.status_code == 404 and said.get("type") == "error", said
    assert said["error"]["type"] == "not_found_error"
    assert "not available yet" in said["error"]["message"]
    for path in ("/api/push", "/ollama/api/push"):
        told = node.http.post(path, json={}).json()["error"]
        assert isinstance(told, str) and "is not supported" in told
