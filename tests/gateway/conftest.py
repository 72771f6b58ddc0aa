"""What a gateway answers in these tests is what its OpenAPI document shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.shown_answers import ShownAnswers, looking


@pytest.fixture(scope="session")
def shown_answers() -> Iterator[ShownAnswers]:
    """What is wrong with the answers that came."""
    seen = ShownAnswers()
    with looking(seen):
        yield seen


@pytest.fixture(autouse=True)
def _answers_are_as_shown(shown_answers: ShownAnswers) -> Iterator[None]:
    yield
    wrong = shown_answers.wrong[:]
    shown_answers.wrong.clear()
    assert not wrong, "answers that the OpenAPI document does not show:\n" + "\n".join(wrong)
