"""`shoal card` against a node that has one model, and an editor that does what the test says."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.app import app
from gateway.cli.output.terminal import Output
from gateway.cli.verbs.store.editing import edit_card
from tests.harness.node_server import serving

AT = "/models/card/org/m"
KEPT = "org/m lies in Hugging Face's cache, where shoal only reads"


class Desk:
    """A node's answers about the card of `org/m`, which lies on desk, and in a cache on lap."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.refused: dict[str, Any] | None = None

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Any:
        if path != AT:
            return 404, {"error": {"message": "there is no such model", "code": "model_not_found"}}
        if method == "PUT":
            if self.refused is not None:
                return 412, {"error": self.refused}
            self.text = body["toml"]
        if method == "DELETE":
            self.text = None
        return 200, self._told(done=method != "GET")

    def _told(self, *, done: bool) -> dict[str, Any]:
        has = self.text is not None
        node = {"folder": "/f", "has_card": has, "is_newest": has, "written_at_s": 1.0}
        desk = {**node, "node": "n1", "name": "desk", "kept": "", "unknown": "", "done": done}
        lap = {**desk, "node": "n2", "name": "lap", "kept": KEPT, "done": False}
        settings = {
            "temperature": {"value": 0.2, "source": "card.toml", "remark": ""},
            "context_tokens": {
                "value": 64, "source": "card.toml", "remark": "takes effect at the next load",
            },
            "seed": {"value": None, "source": "shoal's default", "remark": ""},
            "keep_alive_s": {"value": None, "source": "the node's settings", "remark": ""},
        }  # fmt: skip
        return {
            "model": "org/m",
            "toml": self.text,
            "card": None if self.text is None else tomllib.loads(self.text),
            "refused": "",
            "written_at_s": 1.0,
            "tag": "t",
            "settings": settings,
            "nodes": [desk, lap],
            "in_force": True,
            "remarks": [],
        }


class Shoal:
    def __init__(self, url: str, home: Path, desk: Desk) -> None:
        self.desk = desk
        self._before = ["--home", str(home), "--url", url, "card"]

    def __call__(self, *words: str, say: str | None = None) -> Result:
        return CliRunner().invoke(app, [*self._before, *words], input=say)


@pytest.fixture
def shoal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shoal]:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    desk = Desk()
    with serving(desk.answer) as url:
        yield Shoal(url, tmp_path, desk)


def editor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *texts: str) -> Path:
    """Have the editor write these, one at each time that it is opened; what it saw is returned."""
    script, seen = tmp_path / "editor.py", tmp_path / "seen.json"
    script.write_text(
        "import json, pathlib, sys\n"
        f"texts, seen = {texts!r}, pathlib.Path({str(seen)!r})\n"
        "file = pathlib.Path(sys.argv[1])\n"
        "saw = json.loads(seen.read_text()) if seen.exists() else []\n"
        "seen.write_text(json.dumps([*saw, file.read_text()]))\n"
        "file.write_text(texts[len(saw)])\n"
    )
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
    return seen


def test_show_tells_each_setting_its_source_and_each_nodes_card(shoal: Shoal) -> None:
    shoal.desk.text = "temperature = 0.2\n"
    shown = shoal("show", "org/m").stdout
    for words in (
        "0.2 (card.toml)", "64 (card.toml; takes effect at the next load)",
        "none (shoal's default)", "as set (the node's settings)",
        "this card, not changed: org/m lies in Hugging Face's cache",
    ):  # fmt: skip
        assert words in shown, shown
    assert json.loads(shoal("show", "org/m", "--json").stdout)["tag"] == "t"


def test_add_writes_settings_and_names_the_node_that_keeps_its_own(shoal: Shoal) -> None:
    made = shoal("add", "org/m", "temperature=0.2", "system=Be kind.", "context_tokens=64")
    assert made.exit_code == 0, made.stderr
    assert shoal.desk.text == 'temperature = 0.2\nsystem = "Be kind."\ncontext_tokens = 64\n'
    assert "wrote the card of org/m on desk" in made.stdout
    assert "not on lap: org/m lies in" in made.stderr
    assert "context_tokens: from the model's next load" in made.stderr
    again = shoal("add", "org/m", "temperature=1")
    assert again.exit_code == 2 and "temperature is already set" in again.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("temprature=1",), "line 1: the card has no key 'temprature'; did you mean temperature?"),
        (("temperature",), "'temperature' is not of the form KEY=VALUE"),
        ((), "no settings for the card"),
        (("--from", "/no/such/file"), "cannot read"),
    ],
)
def test_add_refuses_what_no_card_says_and_writes_nothing(
    shoal: Shoal, words: tuple[str, ...], said: str
) -> None:
    refused = shoal("add", "org/m", *words)
    assert refused.exit_code == 2 and said in refused.stderr, refused.stderr
    assert shoal.desk.text is None


def test_a_file_is_written_whole_where_that_is_said(shoal: Shoal, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("# mine\npin = true\n")
    assert shoal("add", "org/m", "--from", str(file), "top_k=4").exit_code == 0
    assert shoal.desk.text == "# mine\npin = true\ntop_k = 4\n"
    kept = shoal("add", "org/m", "--from", "-", say="pin = false\n")
    assert kept.exit_code == 5 and "--replace" in kept.stderr
    assert shoal("add", "org/m", "--from", "-", "--replace", say="pin = false\n").exit_code == 0
    assert shoal.desk.text == "pin = false\n"


def test_export_prints_the_card_and_rm_takes_it_away_when_that_is_said(shoal: Shoal) -> None:
    none = shoal("export", "org/m")
    assert none.exit_code == 4 and "has no card" in none.stderr
    shoal.desk.text = "pin = true  # mine"
    assert shoal("export", "org/m").stdout == "pin = true  # mine\n"
    assert json.loads(shoal("export", "org/m", "--json").stdout)["card"] == {"pin": True}
    unasked = shoal("rm", "org/m")
    assert unasked.exit_code == 1 and "confirm with --yes" in unasked.stderr
    assert shoal.desk.text is not None
    gone = shoal("rm", "org/m", "--yes")
    assert gone.exit_code == 0 and "deleted the card of org/m on desk" in gone.stdout
    assert shoal.desk.text is None


def test_an_edit_begins_with_every_key_and_is_written_once_it_is_saved(
    shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = editor(monkeypatch, tmp_path, "pin = true\n", "pin = true\n")
    assert shoal("edit", "org/m").exit_code == 0
    assert shoal.desk.text == "pin = true\n"
    (first,) = json.loads(seen.read_text())
    assert "# The card of org/m" in first and "# temperature = 0.7" in first
    unchanged = shoal("edit", "org/m")
    assert unchanged.exit_code == 0 and "nothing was changed" in unchanged.stdout
    assert not list(tmp_path.glob("shoal-card-*"))


def test_an_edit_that_is_refused_writes_nothing_and_keeps_the_persons_text(
    shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor(monkeypatch, tmp_path, "temprature = 1\n", "pin = true\n")
    refused = shoal("edit", "org/m")
    assert refused.exit_code == 2 and "did you mean temperature?" in refused.stderr
    assert shoal.desk.text is None
    (file,) = tmp_path.glob("shoal-card-*/org--m.toml")
    assert file.read_text() == "temprature = 1\n" and str(file) in refused.stderr
    shoal.desk.refused = {"message": "the card was changed meanwhile", "code": "card_changed"}
    late = shoal("edit", "org/m")
    assert late.exit_code == 5 and "was changed meanwhile" in late.stderr
    assert len(list(tmp_path.glob("shoal-card-*/org--m.toml"))) == 2


def test_a_person_is_asked_to_edit_again_until_the_card_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seen = editor(monkeypatch, tmp_path, "top_k = 'a'\n", "pin = \n", "pin = true\n")
    asked: list[str] = []

    def again(why: str) -> bool:
        asked.append(why)
        return True

    with edit_card("", "m", Output(), again) as text:
        assert text == "pin = true\n"
    assert ["top_k must be a number" in asked[0], "the card is not valid TOML" in asked[1]] == [
        True,
        True,
    ]
    assert json.loads(seen.read_text()) == ["", "top_k = 'a'\n", "pin = \n"]
    assert not list(tmp_path.glob("shoal-card-*"))


def test_an_editor_that_is_not_there_or_fails_is_said(
    shoal: Shoal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    for name, words in (("/no/such/editor", "cannot start the editor"), ("false", "exited with 1")):
        monkeypatch.setenv("EDITOR", name)
        found = shoal("edit", "org/m")
        assert found.exit_code == 1 and words in found.stderr, found.stderr
    assert shoal.desk.text is None and not list(tmp_path.glob("shoal-card-*"))


def test_a_model_that_is_nowhere_is_said(shoal: Shoal) -> None:
    found = shoal("show", "absent")
    assert found.exit_code == 4 and "there is no such model" in found.stderr
