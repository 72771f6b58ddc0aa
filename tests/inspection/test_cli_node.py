"""Whose node the command line talks to, and what it says of it (C2, C3, C5 of the inspection)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.harness.node_server import instance, serving
from tests.harness.nodes import running_node, shoal
from tests.inspection.test_cli_words import told


class Desk:
    """A node, n1, that holds the model m, and the paths that it was asked for to change it."""

    def __init__(self) -> None:
        self.loaded = [instance("m")]
        self.changes: list[str] = []

    def answer(self, method: str, path: str, _body: dict[str, Any]) -> Any:
        if path == "/health":
            return 200, {"status": "ok", "node": "n1"}
        if method != "GET":
            self.changes.append(f"{method} {path}")
            self.loaded.clear()
        return 200, told(1, *self.loaded)


def of_home(home: Path, url: str, *words: str) -> Any:
    """Run a verb of `home`, whose settings name the port at `url`."""
    env = {"SHOAL_HOME": str(home), "SHOAL_HTTP_PORT": str(urlsplit(url).port)}
    return shoal(*words, env=env)


@pytest.mark.parametrize("words", [("stop", "m"), ("run", "m", "hi"), ("nodes",), ("load", "m")])
@pytest.mark.parametrize("was_up", [False, True], ids=["no such home", "a home that is down"])
def test_c2_a_home_without_a_node_reaches_no_other_homes_node(
    tmp_path: Path, words: tuple[str, ...], was_up: bool
) -> None:
    desk, state = Desk(), tmp_path / "home" / "state"
    if was_up:
        state.mkdir(parents=True)
        (state / "node-id").write_text("n2\n")
    with serving(desk.answer) as url:
        found = of_home(tmp_path / "home", url, *words)
    assert found.returncode == 3, (found.returncode, found.stdout, found.stderr)
    assert desk.changes == []
    assert f"no node runs in {tmp_path / 'home'}" in found.stderr
    assert not was_up or "n1" in found.stderr


def test_c3_a_typo_in_the_settings_leaves_a_running_node_in_hand() -> None:
    with running_node() as node:
        config = node.home / "config" / "shoal.toml"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text("keep_alive_s = 300\nslotz = 3\n")
        try:
            for words in (("status",), ("ps",), ("logs",), ("config", "show"), ("nodes",)):
                found = node.shoal(*words)
                assert found.returncode == 0, (words, found.stderr)
                said = found.stderr.replace("\n", " ")
                assert f"{config}, line 2" in said and "did you mean slots" in said, said
            checks = json.loads(node.shoal("doctor", "--json").stdout)["checks"]
            settings = next(one for one in checks if one["name"] == "settings")
            assert settings["level"] == "error" and "line 2" in settings["found"]
            down = node.shoal("down")
            assert down.returncode == 0, down.stderr
            assert not node.all_processes()
            again = node.shoal("up")
            assert again.returncode == 1 and f"{config}, line 2" in again.stderr.replace("\n", " ")
        finally:
            config.unlink()
