"""What `shoal doctor` says of `tasks.toml`."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.settings import load_settings
from gateway.cli.doctor import checks
from tests.harness.node_server import serving


def found_in(home: Path, text: str | None, running: bool = False) -> checks.Finding:
    settings = load_settings(home=home)
    if text is not None:
        settings.paths.config.mkdir(parents=True, exist_ok=True)
        settings.paths.tasks_file.write_text(text)
    return checks.tasks(settings, running)


def test_no_file_is_well(tmp_path: Path) -> None:
    found = found_in(tmp_path, None)
    assert (found.level, found.remedy) == ("ok", "") and "tasks.toml" in found.found


def test_a_sound_file_is_counted(tmp_path: Path) -> None:
    found = found_in(tmp_path, '[tasks.a]\ncandidates = ["m"]\n')
    assert found.level == "ok" and found.found.startswith("1 tasks, 0 providers")


@pytest.mark.parametrize("text", ['[tasks.a]\ncandidate = ["m"]\n', "[tasks\nx = 1"])
def test_a_broken_file_is_an_error_with_its_line(tmp_path: Path, text: str) -> None:
    for running, words in (
        (False, "the node has no tasks"),
        (True, ("keeps the last valid version")),
    ):
        found = found_in(tmp_path, text, running)
        assert found.level == "error" and "line" in found.found and words in found.remedy


@pytest.mark.parametrize(("has_key", "level"), [(True, "ok"), (False, "warn")])
def test_a_provider_without_a_key_is_named(
    tmp_path: Path, has_key: bool, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(method: str, path: str, body: dict[str, object]) -> tuple[int, object]:
        assert (method, path) == ("GET", "/tasks")
        return 200, {"providers": [{"name": "cloud", "key_env": "CLOUD", "has_key": has_key}]}

    with serving(answer) as url:
        monkeypatch.setenv("SHOAL_HTTP_PORT", url.rpartition(":")[2])
        found = found_in(tmp_path, "", running=True)
    assert found.level == level and ("CLOUD (cloud)" in found.found) is not has_key
