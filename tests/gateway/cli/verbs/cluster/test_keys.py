"""`shoal keys` as it is typed."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.app import app


class Node:
    """The command line of one node's home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.file = home / "state" / "cluster-key"

    def __call__(self, *words: str, say: str | None = None) -> Result:
        return CliRunner().invoke(app, ["--home", str(self.home), "keys", *words], input=say)

    def json(self, *words: str, say: str | None = None) -> Any:
        found = self(*words, "--json", say=say)
        return {"exit": found.exit_code, **json.loads(found.stdout)}

    @property
    def key(self) -> str:
        return self.json("show", "--reveal")["current_key"]


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Node]:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("setproctitle.setproctitle", lambda title: None)
    return [Node(tmp_path / name) for name in ("a", "b", "c")]


def test_init_makes_a_private_key_once_and_shows_its_fingerprint(nodes: list[Node]) -> None:
    first = nodes[0]
    made = first.json("init")
    assert made["exit"] == 0 and made["file"] == str(first.file)
    assert stat.S_IMODE(first.file.stat().st_mode) == 0o600
    again = first("init")
    assert again.exit_code == 1 and "already exists" in again.stderr
    plain = first("show")
    assert made["current"] in plain.stdout and first.key not in plain.stdout + plain.stderr
    assert first.key in first("show", "--reveal").stdout
    assert first.json("show")["phase"] == "settled"


@pytest.mark.parametrize("how", ["argument", "input", "dash"])
def test_a_node_joins_with_the_key_that_another_shows(nodes: list[Node], how: str) -> None:
    first, second = nodes[:2]
    cluster = first.json("init")["current"]
    typed = first.key.lower().replace("-", " ")
    if how == "argument":
        joined = second("join", first.key)
        assert "history" in joined.stderr
    else:
        joined = second("join", *(["-"] if how == "dash" else []), say=typed + "\n")
    assert joined.exit_code == 0 and first.key not in joined.stdout + joined.stderr
    assert second.json("show")["current"] == cluster
    assert stat.S_IMODE(second.file.stat().st_mode) == 0o600
    assert "already" in second("join", "-", say=typed).stdout


def test_a_mistyped_key_joins_nothing_and_is_not_repeated(nodes: list[Node]) -> None:
    first, second = nodes[:2]
    first.json("init")
    wrong = first.key[:-1] + ("0" if first.key[-1] != "0" else "1")
    found = second("join", "-", say=wrong)
    assert found.exit_code == 1 and "checksum" in found.stderr and wrong not in found.stderr
    assert not second.file.exists()


def test_a_node_does_not_slip_from_one_cluster_into_another(nodes: list[Node]) -> None:
    first, second = nodes[:2]
    mine, theirs = first.json("init")["current"], second.json("init")["current"]
    refused = second("join", "-", say=first.key)
    assert refused.exit_code == 1 and mine in refused.stderr and theirs in refused.stderr
    assert second("join", "-", "--replace", say=first.key).exit_code == 0
    assert second.json("show")["current"] == mine


def test_export_and_import_carry_the_keys_in_a_private_file(
    nodes: list[Node], tmp_path: Path
) -> None:
    first, second, third = nodes
    cluster = first.json("init")["current"]
    file = tmp_path / "carry"
    before = os.umask(0)
    try:
        assert first("export", str(file)).exit_code == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert first("export", str(file)).exit_code == 1
    assert second.json("import", str(file))["current"] == cluster
    assert third("import", "-", say=first("export", "-").stdout).exit_code == 0
    assert third.json("show")["current"] == cluster
    file.chmod(0o644)
    assert "other users can read" in second("import", str(file)).stderr
    assert second("import", str(tmp_path / "none")).exit_code == 4


def test_without_a_key_every_verb_names_the_way_out(nodes: list[Node], tmp_path: Path) -> None:
    for words in (("show",), ("export", str(tmp_path / "x")), ("rotate",), ("rotate", "--finish")):
        found = nodes[0](*words)
        assert found.exit_code == 4
        assert "shoal keys init" in found.stderr and "shoal keys join" in found.stderr


def test_a_key_file_that_others_can_read_is_refused(nodes: list[Node]) -> None:
    nodes[0].json("init")
    nodes[0].file.chmod(0o640)
    found = nodes[0]("show")
    assert found.exit_code == 1 and "chmod 600" in found.stderr


def test_two_nodes_rotate_step_by_step(nodes: list[Node], tmp_path: Path) -> None:
    first, second = nodes[:2]
    old = first.json("init")["current"]
    second("join", "-", say=first.key)
    assert first("rotate", "--switch").exit_code == 1
    assert first("rotate", "--finish").exit_code == 1
    prepared = first.json("rotate")
    assert (prepared["phase"], prepared["current"]) == ("prepared", old)
    assert first("rotate").exit_code == 1
    again = first("rotate")
    assert "--switch" in again.stderr
    first("export", str(tmp_path / "1"))
    assert second.json("import", str(tmp_path / "1"))["coming"] == prepared["coming"]
    for node in (first, second):
        switched = node.json("rotate", "--switch")
        assert (switched["current"], switched["past"]) == (prepared["coming"], old)
    for node in (first, second):
        finished = node.json("rotate", "--finish")
        assert (finished["phase"], finished["current"]) == ("settled", prepared["coming"])
    assert first.key == second.key


def test_an_import_neither_undoes_a_step_nor_takes_two(nodes: list[Node], tmp_path: Path) -> None:
    first, second = nodes[:2]
    first.json("init")
    second("join", "-", say=first.key)
    first("export", str(tmp_path / "settled"))
    first("rotate")
    first("export", str(tmp_path / "prepared"))
    first("rotate", "--switch")
    first("export", str(tmp_path / "switched"))
    assert second("import", str(tmp_path / "switched")).exit_code == 1
    assert second("import", str(tmp_path / "prepared")).exit_code == 0
    back = second("import", str(tmp_path / "settled"))
    assert back.exit_code == 1 and "not one rotation step" in back.stderr
    assert second("import", str(tmp_path / "switched")).exit_code == 0
    assert second.json("show")["phase"] == "switched"


def test_what_is_no_key_is_refused_with_json_too(nodes: list[Node]) -> None:
    for words, said in ((("join", "-"), "hello"), (("import", "-"), "current x\n")):
        found = nodes[0].json(*words, say=said)
        assert found["exit"] == 1 and found["error"]["message"]


def test_the_key_may_lie_elsewhere(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = nodes[0].home.parent / "vault" / "key"
    monkeypatch.setenv("SHOAL_CLUSTER_KEY_FILE", str(elsewhere))
    assert nodes[0].json("init")["file"] == str(elsewhere)
    assert elsewhere.exists() and not nodes[0].file.exists()
    assert nodes[1].json("show")["exit"] == 0


def test_no_word_of_a_key_gets_into_the_settings(nodes: list[Node]) -> None:
    nodes[0].json("init")
    shown = CliRunner().invoke(app, ["--home", str(nodes[0].home), "config", "show", "--json"])
    assert shown.exit_code == 0 and nodes[0].key not in shown.stdout
