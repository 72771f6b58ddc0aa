"""Environments of clients are made once, whole or not at all, and say why they cannot be."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness.cached import cache
from tests.harness.client_environments import Unavailable, client_python


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of locks, where the cache is empty and the package index refuses connections."""
    for name in ("XDG_CACHE_HOME", "UV_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    folder = tmp_path / "locks"
    folder.mkdir()
    return folder


def test_an_environment_that_two_make_at_once_is_one_and_works(locks: Path) -> None:
    (locks / "plain.txt").write_text("")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda name: client_python(name, locks), ["plain", "plain"])
    assert first == second == client_python("plain", locks)
    asked = subprocess.run(
        [first, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True
    )
    assert Path(asked.stdout.strip()) == first.parents[1]
    assert [path.name for path in cache().iterdir()] == [first.parents[1].name]


@pytest.mark.proof
def test_another_lock_is_another_environment(locks: Path) -> None:
    (locks / "plain.txt").write_text("")
    first = client_python("plain", locks)
    (locks / "plain.txt").write_text("# renewed\n")
    assert client_python("plain", locks) != first


def test_an_index_that_cannot_be_reached_is_told_and_nothing_is_left(locks: Path) -> None:
    (locks / "far.txt").write_text("six==1.17.0\n")
    with pytest.raises(Unavailable, match=r"far is not in .*, and cannot be fetched: "):
        client_python("far", locks)
    assert list(cache().iterdir()) == []


@pytest.mark.proof
def test_a_lock_that_is_broken_is_a_failure_and_no_skip(locks: Path) -> None:
    (locks / "broken.txt").write_text("six===>\n")
    with pytest.raises(RuntimeError, match="broken"):
        client_python("broken", locks)
    assert list(cache().iterdir()) == []
