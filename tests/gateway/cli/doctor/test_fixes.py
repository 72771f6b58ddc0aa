"""`shoal doctor --fix`: commands that run, fail, and are undone."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from conf.settings import load_settings
from gateway.cli.doctor.check import Finding, Fix
from gateway.cli.doctor.fixes import fix_all
from gateway.cli.output.errors import CliError
from gateway.cli.output.terminal import Output
from tests.harness.nodes import shoal

Command = tuple[str, ...]


def touching(path: Path, exit_code: int = 0) -> Command:
    return (sys.executable, "-c", f"open({str(path)!r}, 'w'); raise SystemExit({exit_code})")


def problem(*commands: Command, undo: tuple[Command, ...] = ()) -> Finding:
    return Finding("mlx", "warn", "a GPU is idle", "do it", Fix(commands, undo=undo))


def test_commands_run_in_their_order_and_nothing_is_undone(tmp_path: Path) -> None:
    first, second, undone = tmp_path / "1", tmp_path / "2", tmp_path / "undone"
    found = [Finding("disk", "ok", "free"), problem(touching(first), undo=(touching(undone),))]
    found.append(
        problem((sys.executable, "-c", f"import os; os.rename({str(first)!r}, {str(second)!r})"))
    )
    assert fix_all(found, Output())
    assert second.exists() and not first.exists() and not undone.exists()
    assert not fix_all([Finding("disk", "warn", "full", "free some")], Output())


def test_a_change_that_does_not_help_is_undone(tmp_path: Path) -> None:
    done, undone = tmp_path / "done", tmp_path / "undone"
    no_proof = (sys.executable, "-c", "import mlx.nothing_of_this_name")
    fix = Fix((touching(done),), proof=(no_proof,), undo=(touching(undone),))
    with pytest.raises(CliError, match="exited with 1; the fix was undone"):
        fix_all([Finding("mlx", "warn", "a GPU is idle", "do it", fix)], Output())
    assert done.exists() and undone.exists()


@pytest.mark.parametrize("undo_fails", [False, True])
def test_a_command_that_fails_is_undone_and_named(tmp_path: Path, undo_fails: bool) -> None:
    later, undone = tmp_path / "later", tmp_path / "undone"
    failing = touching(tmp_path / "failing", 3)
    found = problem(failing, touching(later), undo=(touching(undone, int(undo_fails)),))
    with pytest.raises(CliError, match="exited with 3") as caught:
        fix_all([found, problem(touching(later))], Output())
    assert undone.exists() and not later.exists()
    word = "undoing the fix failed too" if undo_fails else "the fix was undone"
    assert word in caught.value.message


def test_a_command_that_is_not_there_is_an_error_without_a_traceback() -> None:
    with pytest.raises(CliError, match="cannot be started: No such file"):
        fix_all([problem(("/nowhere/uv", "pip"))], Output())


def test_the_verb_closes_a_file_that_others_can_read(tmp_path: Path) -> None:
    file = load_settings(home=tmp_path).paths.config_file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('api_keys = ["secret-of-ours-1234"]\n')
    os.chmod(file, 0o644)
    env = {"SHOAL_HOME": str(tmp_path)}

    def levels(*words: str) -> dict[str, str]:
        done = shoal("doctor", "--json", *words, env=env)
        return {check["name"]: check["level"] for check in json.loads(done.stdout)["checks"]}

    assert levels()["api keys"] == "warn"
    assert file.stat().st_mode & 0o777 == 0o644, "without --fix nothing changes"
    assert levels("--fix")["api keys"] == "ok"
    assert file.stat().st_mode & 0o777 == 0o600
