from __future__ import annotations

import json

import pytest

from gateway.dialects.registry import envelope_of
from gateway.dialects.to_come import (
    NOT_OFFERED,
    TO_COME,
    absence,
    not_offered,
    not_there_yet,
    to_come,
)
from gateway.http.routes import ROUTES


def test_no_path_that_is_answered_is_said_to_come() -> None:
    assert not [route.path for route in ROUTES if absence(route.path)]


@pytest.mark.parametrize("path", TO_COME)
def test_a_path_to_come_says_what_to_use_today_in_its_clients_envelope(path: str) -> None:
    row = to_come(f"{path}/below")
    assert row is not None and row is to_come(path)
    answer = envelope_of(path).answer(not_there_yet(path, row))
    assert answer.status == 404 and row.instead in answer.body.decode()


def test_a_path_that_only_begins_alike_is_misspelt() -> None:
    assert to_come("/v1/embeddingss") is None and to_come("/v1/message") is None
    assert to_come("/ollama/v1/embeddings") is None


@pytest.mark.parametrize("path", NOT_OFFERED)
def test_a_path_that_is_not_offered_says_why_and_what_to_do_instead(path: str) -> None:
    row = not_offered(f"{path}/below")
    assert row is not None and row is not_offered(path) and to_come(path) is None
    fault = absence(path)
    assert fault is not None and fault.code == row.code
    answer = envelope_of(path).answer(fault)
    said = json.loads(answer.body)["error"]
    said = said["message"] if path[:4] != "/api" else said
    assert answer.status == 404 and row.why in said and row.instead in said
    assert "not there yet" not in said


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/images/generations", "/v1/moderations"])
def test_what_no_engine_does_is_told_from_what_is_to_come(path: str) -> None:
    fault = absence(path)
    assert (
        fault is not None
        and fault.code == "no_such_engine"
        and "no engine supports" in fault.message
    )


@pytest.mark.parametrize(
    "path", ["/v1/files", "/v1/files/f_1", "/v1/complete", "/v1/skills/s/versions"]
)
def test_anthropics_clients_are_refused_in_their_own_words(path: str) -> None:
    fault = absence(path)
    assert fault is not None
    answer = envelope_of(path, {"anthropic-version"}.__contains__).answer(fault)
    said = json.loads(answer.body)
    assert (answer.status, said["type"], said["error"]["type"]) == (404, "error", "not_found_error")


def test_openais_clients_are_refused_in_theirs() -> None:
    fault = absence("/v1/files")
    assert fault is not None
    assert "code" in json.loads(envelope_of("/v1/files").answer(fault).body)["error"]


def test_ollamas_own_paths_are_refused_under_either_root() -> None:
    for path in ("/api/push", "/ollama/api/push", "/ollama/api/blobs/sha256:00"):
        fault = absence(path)
        assert fault is not None
        assert list(json.loads(envelope_of(path).answer(fault).body)) == ["error"]
    assert absence("/api/pushed") is None and absence("/ollama/v1/files") is None
