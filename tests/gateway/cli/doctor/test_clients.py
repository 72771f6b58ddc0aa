"""What `shoal doctor` says of `clients.toml`."""

from __future__ import annotations

from pathlib import Path

import pytest

from conf.settings import load_settings
from gateway.cli.doctor import checks


def found_in(home: Path, text: str | None, running: bool = False) -> checks.Finding:
    settings = load_settings(home=home)
    if text is not None:
        settings.paths.config.mkdir(parents=True, exist_ok=True)
        settings.paths.clients_file.write_text(text)
    return checks.clients(settings, running)


def test_no_file_is_well_and_a_sound_one_is_counted(tmp_path: Path) -> None:
    found = found_in(tmp_path, None)
    assert (found.level, found.remedy) == ("ok", "") and "clients.toml" in found.found
    found = found_in(tmp_path, "[clients.ann]\ncooldown_s = 1\n")
    assert found.level == "ok" and found.found.startswith("1 profiles")


@pytest.mark.parametrize("text", ["[clients.ann]\ncooldown = 1\n", "[clients\nx = 1"])
def test_a_broken_file_is_an_error_with_its_line(tmp_path: Path, text: str) -> None:
    for running, words in (
        (False, ("the node has no profiles")),
        (True, "keeps the last valid version"),
    ):
        found = found_in(tmp_path, text, running)
        assert found.level == "error" and "line" in found.found and words in found.remedy
