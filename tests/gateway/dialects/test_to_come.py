from __future__ import annotations

import pytest

from gateway.dialects.registry import envelope_of
from gateway.dialects.to_come import TO_COME, not_there_yet, to_come
from gateway.http.routes import ROUTES


def test_no_path_that_is_answered_is_said_to_come() -> None:
    assert not [route.path for route in ROUTES if to_come(route.path)]


@pytest.mark.parametrize("path", TO_COME)
def test_a_path_to_come_says_what_to_use_today_in_its_clients_envelope(path: str) -> None:
    row = to_come(f"{path}/below")
    assert row is not None and row is to_come(path)
    answer = envelope_of(path).answer(not_there_yet(path, row))
    assert answer.status == 404 and row.instead in answer.body.decode()


def test_a_path_that_only_begins_alike_is_misspelt() -> None:
    assert to_come("/v1/embeddingss") is None and to_come("/v1/message") is None
    assert to_come("/ollama/api/embed") is TO_COME["/api/embed"]
    assert to_come("/ollama/v1/embeddings") is None
