"""What is made of the words of others."""

from __future__ import annotations

import errno

import pytest

from bus.process.tools import in_words


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (f"[ring] Couldn't connect (error: {errno.ECONNREFUSED})", "(Connection refused)"),
        (f"[ring] Send failed with errno={errno.EPIPE}", "with Broken pipe"),
        (f"[jaccl] RTR failed with errno {errno.EINVAL}", "with Invalid argument"),
    ],
)
def test_error_numbers_become_words(said: str, told: str) -> None:
    assert in_words(said).endswith(told) and in_words(said).startswith(said[:6])


@pytest.mark.parametrize("said", ["[ring] connection to a peer was lost", "error 7 of 9", ""])
def test_other_numbers_stay(said: str) -> None:
    assert in_words(said) == said
