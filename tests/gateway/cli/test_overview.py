"""`shoal` without a verb: what runs, and three next steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from bus.process.installation import shoal_version
from gateway.cli.app import app
from gateway.cli.overview import NodeOverview, next_steps_of
from tests.harness.node_server import serving


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_without_a_node_it_says_so_and_how_to_start_one(tmp_path: Path) -> None:
    done = run("--home", str(tmp_path))
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == f"shoal {shoal_version()}: no node runs in {tmp_path.resolve()}"
    assert lines[2].split("  ")[1] == f"shoal up --home {tmp_path}"
    assert len(lines) == 6 and lines[-1] == "`shoal --help` lists all commands"
    assert not list(tmp_path.iterdir()), "it creates nothing"


def test_json_has_the_status_and_the_next_commands(tmp_path: Path) -> None:
    found = json.loads(run("--home", str(tmp_path), "--json").stdout)
    assert (found["status"], found["models"]) == ("down", []) and len(found["next"]) == 3


def test_help_is_still_a_question_of_its_own() -> None:
    for words in (("--help",), ("-h",), ("help",)):
        done = run(*words)
        assert done.exit_code == 0 and "Commands" in done.stdout, done.output


def test_each_status_has_its_own_next_steps() -> None:
    up = next_steps_of(NodeOverview("up", "desk", models=("a/b",)), " --home x")
    assert up[0][0] == "shoal run a/b --home x"
    assert next_steps_of(NodeOverview("up", "desk"), "")[0][0] == "shoal run shoal-tiny"
    silent = next_steps_of(NodeOverview("silent", "desk"), "")
    assert silent[1][0] == "shoal logs gateway"


def test_a_running_node_is_named_with_its_models() -> None:
    models = ["a/b", "c", "d", "e", "f"]

    def answer(_method: str, path: str, _body: dict[str, Any]) -> Any:
        assert path == "/health"
        return 200, {"status": "ok", "node": "n1", "name": "desk", "models_ready": models}

    with serving(answer) as url:
        done = run("--url", url)
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        f"shoal {shoal_version()}: desk is up at {url}",
        "models in memory: a/b, c, d, e and 1 more",
    ]
    assert lines[3].startswith(f"  shoal run a/b --url {url}  ")


def test_an_address_without_a_node_ends_with_3() -> None:
    done = run("--url", "http://127.0.0.1:9")
    assert done.exit_code == 3 and "no node answers" in done.output
