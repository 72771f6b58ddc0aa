"""`shoal upgrade`: the commands for this installation, and the wheel that they install."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bus.process.installation import shoal_version
from gateway.cli.app import app
from gateway.cli.verbs.node.version import newest_beside
from tests.harness.typed_lines import examples

NAME = "shoal_llm-{}-py3-none-any.whl"


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.mark.parametrize("line", examples("upgrade"))
def test_the_printed_lines_run_as_printed(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / NAME.format("0.1.0")).touch()
    monkeypatch.chdir(tmp_path)
    done = run(*shlex.split(line)[1:])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"shoal {shoal_version()} was installed from the clone ")
    assert done.stdout.splitlines()[1:2] == ["to upgrade it, run:"]
    assert done.stdout.splitlines()[-1] == "  shoal restart"


def test_json_has_the_commands_word_by_word(tmp_path: Path) -> None:
    wheel = tmp_path / NAME.format("9.0.0")
    wheel.touch()
    (tmp_path / "constraints.txt").touch()
    plan = json.loads(run("upgrade", str(wheel), "--json").stdout)
    assert plan["kind"] == "clone" and plan["version"] == shoal_version()
    pinned = ["--constraint", str(tmp_path / "constraints.txt"), str(wheel)]
    assert plan["commands"][0][-3:] == pinned


def test_a_path_that_is_no_wheel_is_refused_with_the_remedy(tmp_path: Path) -> None:
    strange = run("upgrade", str(tmp_path / "other-1.0-py3-none-any.whl"))
    assert strange.exit_code == 2 and "is not a wheel of shoal" in strange.output
    missing = run("upgrade", str(tmp_path / NAME.format("0.2.0")))
    assert missing.exit_code == 4 and "does not exist" in missing.output


def test_the_newest_wheel_beside_the_installed_one_is_taken(tmp_path: Path) -> None:
    installed = tmp_path / NAME.format("0.9.0")
    assert newest_beside(str(installed), "0.9.0") is None
    for version in ("0.8.0", "0.9.0", "0.10.0"):
        (tmp_path / NAME.format(version)).touch()
    newest = newest_beside(str(installed), "0.9.0")
    assert newest is not None and newest.version == "0.10.0" and not newest.constraints
    assert newest_beside(str(installed), "0.11.0") is None, "all are older"
    assert newest_beside("/home/ann/shoal", "0.9.0") is None, "a folder has no wheels"
