"""`shoal config`: a file of settings changed by hand and by word, to what a node would take."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from conf.settings import load_settings
from conf.supervisord import remember_start
from gateway.cli.app import app
from tests.harness.nodes import ROOT


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SHOAL_")]:
        monkeypatch.delenv(name)


def config(home: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["--home", str(home), "config", *words])


def file_of(home: Path) -> Path:
    return home / "config" / "shoal.toml"


def test_settings_are_set_and_unset_and_the_rest_stays(tmp_path: Path) -> None:
    done = config(tmp_path, "set", "keep_alive_s", "60", "runner.max_rows", "16")
    assert done.exit_code == 0 and "keep_alive_s is 60.0" in done.stdout
    before = file_of(tmp_path).read_text()
    assert "keep_alive_s = 60.0" in before and "# Seconds that an idle model" in before
    done = config(tmp_path, "unset", "keep_alive_s", "--json")
    assert json.loads(done.stdout)["settings"]["keep_alive_s"]["value"] == 300.0
    put_back = before.replace("keep_alive_s = 60.0", "#keep_alive_s = 300.0")
    assert file_of(tmp_path).read_text() == put_back
    assert config(tmp_path, "path").stdout.strip() == str(file_of(tmp_path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("slots", "0"), "slots = 0: must be at least 1"),
        (("slot", "3"), "did you mean slots?"),
        (("slots",), "slots has no value"),
        (("offline", "yes"), "must be true or false"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_written(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = config(tmp_path, "set", *words)
    assert done.exit_code == 2 and said in done.stderr.replace("\n", " ")
    assert not file_of(tmp_path).exists()


def test_a_file_that_is_refused_is_mended_by_word_and_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    file_of(home).parent.mkdir(parents=True)
    file_of(home).write_text("slots = 0\n# mine\n")
    assert config(home, "show").exit_code == 1
    assert config(home, "path").stdout.split() == [str(file_of(home))]
    assert config(home, "set", "--", "slots", "3", "keep_alive_s", "-1").exit_code == 0
    assert "# mine" in file_of(home).read_text() and load_settings(home=home).keep_alive_s == -1.0
    file_of(home).write_text("slots = \n")
    refused = config(home, "set", "slots", "3")
    assert refused.exit_code == 2 and "line 1" in refused.stderr
    editor(tmp_path, monkeypatch, "slots = =>slots = 5")
    assert config(home, "edit").exit_code == 0 and load_settings(home=home).slots == 5


def test_what_goes_before_the_file_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_SLOTS", "3")
    done = config(tmp_path, "set", "slots", "5")
    assert "environment SHOAL_SLOTS overrides shoal.toml" in done.stderr.replace("\n", " ")
    assert tomllib.loads(file_of(tmp_path).read_text())["slots"] == 5


def test_a_running_node_waits_for_a_restart_but_for_the_log_level(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path)
    settings.paths.state.mkdir(parents=True)
    remember_start(settings)
    done = config(tmp_path, "set", "slots", "5", "log_level", "debug", "--json")
    told = json.loads(done.stdout)["settings"]
    assert (told["slots"]["restart"], told["log_level"]["restart"]) == (True, False)
    shown = config(tmp_path, "show")
    assert "slots: the node runs with 8; run `shoal restart` to apply it" in shown.stderr
    assert "log_level" not in shown.stderr
    found = json.loads(config(tmp_path, "show", "--json").stdout)["settings"]
    assert found["slots"]["running"] == 8 and "running" not in found["log_level"]


def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *changes: str) -> None:
    """Have an editor that makes one of the changes `OLD=>NEW` at each call."""
    script, turn = tmp_path / "editor.py", tmp_path / "turn"
    script.write_text(
        "import pathlib, sys\n"
        f"turn = pathlib.Path({str(turn)!r})\n"
        "at = int(turn.read_text()) if turn.exists() else 0\n"
        "turn.write_text(str(at + 1))\n"
        f"old, new = {list(changes)!r}[at].split('=>')\n"
        "file = pathlib.Path(sys.argv[1])\n"
        "file.write_text(file.read_text().replace(old, new))\n"
    )
    monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_an_edited_file_is_written_when_a_node_would_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    editor(tmp_path, monkeypatch, "#slots = 8=>slots = 6", "slots = 6=>slots = 0", "x=>x")
    done = config(home, "edit")
    assert done.exit_code == 0 and load_settings(home=home).slots == 6
    refused = config(home, "edit")
    assert refused.exit_code == 2 and "slots = 0" in refused.stderr
    assert load_settings(home=home).slots == 6
    [kept] = tmp_path.glob("shoal-config-*")
    assert "slots = 0" in (kept / "shoal.toml").read_text() and kept.name in refused.stderr
    assert "is unchanged" in config(home, "edit").stdout.replace("\n", " ")
    assert [kept] == list(tmp_path.glob("shoal-config-*"))


def test_the_lines_of_the_page_say_what_they_are_printed_to_say(tmp_path: Path) -> None:
    page = ROOT / "docs" / "operations" / "configuration.md"
    block = page.read_text().partition("## Changing settings")[2].split("```")[1].strip()
    said: list[str] = []
    for line in block.splitlines():
        if line.startswith("$ shoal config "):
            done = config(tmp_path, *line.removeprefix("$ shoal config ").split())
            assert done.exit_code == 0, done.stderr
            said += [line, *done.stdout.strip().splitlines()]
    assert len(said) > 3
    written = "\n".join(said).replace(str(file_of(tmp_path)), "/home/me/.config/shoal/shoal.toml")
    assert written == block
