"""`shoal engine`: environments made by the real uv from wheels in a folder."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from bus.models.tasks import CommandEngine
from bus.process.installation import Environment, environment_in
from conf.settings import load_settings
from gateway.cli.app import app
from gateway.cli.doctor import checks
from gateway.cli.verbs.engines.uv import find_uv
from runner.command.engine_process import EngineProcess
from tests.harness.command_site import SERVER
from tests.harness.commands import CODE, ROOT
from tests.harness.engine_wheels import write_wheel
from tests.harness.gateway_testbed import eventually
from tests.harness.typed_lines import examples
from worker.models.files.command_engines import CommandEngines

COMMAND = "tiny-server --port {port} --model {model}"
HANGS = """#!/bin/sh
case "$*" in *"pip install"*) echo Downloading a lot; touch "$MARK"; exec sleep 60;; esac
exec "$REAL_UV" "$@"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, and a folder of wheels in which uv alone looks."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    write_wheel(wheels, "tiny_base", "2.0")
    for version in ("1.0", "1.1"):
        text = SERVER.read_text()
        write_wheel(
            wheels, "tiny_server", version, script="tiny-server", code=text, needs="tiny-base"
        )
    settings = tmp_path / "uv.toml"
    settings.write_text(f'no-index = true\nfind-links = ["{wheels}"]\n')
    monkeypatch.setenv("UV_CONFIG_FILE", str(settings))
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    return tmp_path / "home"


def write_source(folder: Path) -> None:
    """Write a package without a wheel: its build would run code."""
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: tiny-source\nVersion: 1.0\n",
        "setup.py": "1 / 0",
    }
    with tarfile.open(folder / "tiny_source-1.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"tiny_source-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


def run(*words: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["engine", *words])
    assert done.exit_code == code, done.output
    return done


def listed() -> dict[str, dict[str, Any]]:
    rows = json.loads(run("ls", "--json").stdout)["environments"]
    return {row["name"]: row for row in rows}


def write_engines(home: Path, venv: str) -> None:
    file = home / "config" / "engines.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'[engines.m]\ncommand = "{COMMAND}"\nvenv = "{venv}"\nstop_s = 1.0\n')


def test_a_program_runs_in_its_environment_which_stays_until_it_ends(home: Path) -> None:
    root = home / "data" / "engines"
    engines = CommandEngines(home / "config" / "engines.toml", root)
    write_engines(home, "tiny")
    look = engines.look({}, {})
    assert not look.cards and "no environment tiny" in look.notices[0].why
    assert (
        look.notices[0].remedy == "create the environment: `shoal engine add tiny PACKAGE==VERSION`"
    )
    found = checks.engines(load_settings(home=home), False)
    assert found.level == "error" and found.remedy == look.notices[0].remedy
    assert json.loads(run("ls", "--json").stdout)["missing"] == ["tiny"]

    made = run("add", "tiny", "Tiny.Server==1.0", "-v")
    assert "made tiny: tiny-server==1.0 and 1 more" in made.stdout
    assert "Installed 2 packages" in made.stderr
    environment = environment_in(root, "tiny")
    assert environment is not None
    lock = (environment.built / "requirements.txt").read_text()
    assert lock.count("==") == 2 and lock.count("--hash=sha256:") == 2
    assert not (root / ".cache").exists()
    assert [card.model for card in engines.look({}, {}).cards] == ["m"]
    assert checks.engines(load_settings(home=home), False).level == "ok"

    run_and_replace(environment)
    assert listed()["tiny"]["packages"] == ["tiny-server==1.1"]
    removed = run("rm", "tiny")
    assert "freed" in removed.stdout and "the engine m names this environment" in removed.stderr
    assert not (root / "tiny").exists()
    assert "no environment tiny" in run("rm", "tiny", code=4).output


def run_and_replace(environment: Environment) -> None:
    """Run the program, try to delete its environment, and replace its packages meanwhile."""
    engine = CommandEngine(command=COMMAND, venv="tiny", stop_s=1.0)
    process = EngineProcess("m", engine, environment)
    try:
        eventually(lambda: process.listens(), 20, "the program listens")
        row = listed()["tiny"]
        assert row["engines"] == ["m"] and row["processes"] and row["complete"]
        refused = run("rm", "tiny", code=5)
        assert "tiny is in use by" in refused.output and "shoal stop m" in refused.output
        again = run("add", "tiny", "tiny-server==1.1", code=5)
        assert "tiny exists: tiny-server==1.0 and 1 more" in again.output
        replaced = run("add", "tiny", "tiny-server==1.1", "--replace")
        assert "uses the earlier packages until it is unloaded" in replaced.stderr
        process.check()
        assert environment.venv.exists(), "the program still runs in it"
    finally:
        process.end()


def test_pins_of_a_file_are_installed_only_with_their_hashes(home: Path, tmp_path: Path) -> None:
    run("add", "tiny", "tiny-server==1.0")
    lock = Path(listed()["tiny"]["lock"]).read_text()
    pins = tmp_path / "pins.txt"
    pins.write_text(lock)
    run("add", "same", "--lock", str(pins))
    assert set(listed()["same"]["packages"]) == {"tiny-base==2.0", "tiny-server==1.0"}
    begin = lock.index("sha256:") + len("sha256:")
    pins.write_text(lock[:begin] + "0" * 64 + lock[begin + 64 :])
    wrong = run("add", "wrong", "--lock", str(pins), code=1)
    assert "Hash mismatch for `tiny-base==2.0`" in wrong.output
    pins.write_text("tiny-server==1.0\n")
    unhashed = run("add", "wrong", "--lock", str(pins), code=1)
    assert "must have a hash" in unhashed.output
    assert set(listed()) == {"same", "tiny"}


def test_what_cannot_be_made_is_refused_and_leaves_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "no version of tiny-server==9" in run("add", "x", "tiny-server==9", code=1).output
    python = run("add", "x", "tiny-server", "--python", "2.1", code=1)
    assert "cannot make an environment with Python 2.1" in python.output
    for words in (["Up"], ["../x", "a"], ["x"], ["x", "a", "--lock", "f"], ["x", "./a.whl"]):
        run("add", *words, code=2)
    write_source(tmp_path / "wheels")
    source = run("add", "x", "tiny-source", code=1)
    assert "tiny-source" in source.output and "uild" in source.output
    assert not listed()
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setattr(sys, "executable", str(empty / "python"))
    missing = run("add", "x", "tiny-server", code=1)
    assert "uv, which makes the environments, is not installed" in missing.output
    assert "docs.astral.sh/uv" in missing.output


def test_an_interrupted_add_leaves_nothing_that_is_used(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, folder = tmp_path / "mark", tmp_path / "bin"
    folder.mkdir()
    (folder / "uv").write_text(HANGS)
    (folder / "uv").chmod(0o755)
    real, path = find_uv(), f"{folder}{os.pathsep}{os.environ['PATH']}"
    own = {"REAL_UV": real, "MARK": str(mark), "PATH": path, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-P", "-c", CODE, "engine", "add", "tiny", "tiny-server==1.0"]

    def ended_by(number: int) -> list[psutil.Process]:
        """Send a signal to an `add` that installs; return its processes that are left."""
        mark.unlink(missing_ok=True)
        with subprocess.Popen(
            words, env={**os.environ, **own}, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ) as program:  # fmt: skip
            eventually(mark.exists, 30, "uv installs")
            children = psutil.Process(program.pid).children()
            program.send_signal(number)
            program.wait(30)
        return [each for each in children if each.is_running()]

    assert not ended_by(signal.SIGINT)
    assert not listed()
    (left,) = ended_by(signal.SIGKILL)
    row = listed()["tiny"]
    assert not row["complete"] and environment_in(home / "data" / "engines", "tiny") is None
    busy = run("add", "tiny", "tiny-server==1.0", code=5)
    assert "is at work" in busy.output
    left.kill()
    eventually(lambda: not left.is_running() or left.status() == "zombie", 10, "uv is gone")
    with monkeypatch.context() as within:
        for name, text in own.items():
            within.setenv(name, text)
        late = run("add", "tiny", "tiny-server==1.0", "--within", "1", code=1)
    assert "not finished within 1 s" in late.output and "--within" in late.output
    run("add", "tiny", "tiny-server==1.0")
    assert listed()["tiny"]["complete"]
    builds = [each for each in (home / "data" / "engines" / "tiny").iterdir() if each.is_dir()]
    assert len(builds) == 1


def test_the_lines_of_the_page_run_as_printed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("0.17.0", "0.18.0"):
        write_wheel(tmp_path / "wheels", "vllm", version, script="vllm")
    monkeypatch.chdir(tmp_path)
    lines = examples("engine")
    assert len(lines) == 5
    for line in lines:
        words = shlex.split(line)
        assert words[:2] == ["shoal", "engine"]
        if "--lock" in words:
            lock = Path(listed()["vllm"]["lock"]).read_text()
            (tmp_path / "requirements.txt").write_text(lock)
        run(*words[2:])
    assert set(listed()) == {"copy"}
