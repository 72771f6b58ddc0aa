"""The files that start a node with its machine, letter by letter, and who may write them."""

from __future__ import annotations

import os
import plistlib
import pwd
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from bus.process.installation import Installation
from gateway.cli.app import app
from gateway.cli.node import units
from gateway.cli.node.units import Account, NotAUnit, Service, plan
from gateway.cli.output.errors import CliError
from gateway.cli.verbs.node import service
from gateway.cli.verbs.node.service import (
    _check_start,  # pyright: ignore[reportPrivateUsage]
    check_lasting,
)
from gateway.cli.verbs.node.up import _hold  # pyright: ignore[reportPrivateUsage]

GOLDEN = Path(__file__).parent / "golden"
AWKWARD = '/home/ann b/50% of $HOME/it\'s "here"\\'
PLAIN = Service("shoal", "/opt/shoal/bin/python", "", Account("ann", "/home/ann"), {})
CHOSEN = Service(
    "shoal-0123456789",
    "/opt/shoal env/bin/python",
    AWKWARD,
    Account("ann", "/Users/ann"),
    {"HF_HOME": "/Volumes/50% full/hf"},
)
TEXT = st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=["C"]))


def run(*words: str, **environment: str) -> Any:
    return CliRunner().invoke(app, ["service", *words], env=environment)


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("shoal.service", plan(PLAIN, "linux", "system")),
        ("shoal-user.service", plan(PLAIN, "linux", "user")),
        ("shoal-0123456789.service", plan(CHOSEN, "linux", "system")),
        ("local.shoal.plist", plan(PLAIN, "darwin", "system")),
        ("local.shoal.0123456789.plist", plan(CHOSEN, "darwin", "system")),
    ],
)
def test_the_files_are_as_they_were_read_and_approved(name: str, made: units.Plan) -> None:
    assert made.text == (GOLDEN / name).read_text()


def test_launchd_lets_go_of_a_job_of_that_name_before_it_takes_another() -> None:
    made = plan(CHOSEN, "darwin", "system")
    label = "system/local.shoal.0123456789"
    assert made.before == (("launchctl", "bootout", label),)
    assert made.start[0][:3] == ("launchctl", "bootstrap", "system")
    assert plan(PLAIN, "linux", "system").before == ()


def words_of(line: str) -> list[str]:
    """systemd's reading of a line of quoted words, written apart from what quotes them."""
    words: list[str] = []
    for quoted in re.findall(r'"((?:[^"\\]|\\.)*)"', line):
        plain = re.sub(r"\\(.)", r"\1", quoted)
        assert not re.search(r"(?<!%)(%%)*%(?!%)", plain), "a lone % is a specifier"
        words.append(plain.replace("%%", "%"))
    return words


@given(TEXT, TEXT)
def test_whatever_a_path_holds_systemd_reads_it_back(python: str, home: str) -> None:
    one = Service("shoal", python, "/" + home, Account("ann", "/home/ann"), {"HF_HOME": home})
    lines = plan(one, "linux", "system").text.splitlines()
    [line] = [one for one in lines if one.startswith("ExecStart=")]
    assert [word.replace("$$", "$") for word in words_of(line)] == list(units.command(one))
    assert "$" not in re.sub(r"\$\$", "", line)
    assert [f"HF_HOME={home}"] in [words_of(one) for one in lines if one.startswith("Environment=")]


@given(TEXT, TEXT)
def test_whatever_a_path_holds_launchd_reads_it_back(python: str, home: str) -> None:
    one = Service("shoal", python, "/" + home, Account("ann", "/Users/ann"), {})
    job = plistlib.loads(plan(one, "darwin", "system").text.encode())
    assert job["ProgramArguments"] == list(units.command(one))
    assert job["UserName"] == "ann"


@pytest.mark.parametrize("bad", ["/a\nExecStartPre=/bin/rm", "/a\x00", "/a\r", "/a\x7f"])
def test_a_path_that_would_break_out_of_its_line_is_refused(bad: str) -> None:
    for one in (
        Service("shoal", "/python", bad, Account("ann", "/home/ann"), {}),
        Service("shoal", "/python", "", Account("ann", bad), {}),
        Service("shoal", "/python", "", Account("ann", "/home/ann"), {"HF_HOME": bad}),
    ):
        with pytest.raises(NotAUnit, match="control character"):
            plan(one, "linux", "system")


def test_macos_has_no_service_of_ones_own() -> None:
    with pytest.raises(NotAUnit, match="LaunchDaemon"):
        plan(PLAIN, "darwin", "user")


def test_two_homes_have_two_services() -> None:
    paths = {
        plan(one, system, "system").path
        for one in (PLAIN, CHOSEN)
        for system in ("linux", "darwin")
    }
    assert len(paths) == 4


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("home", ["", AWKWARD])
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path, home: str) -> None:
    me = pwd.getpwuid(os.geteuid())
    one = Service("shoal", sys.executable, home, Account(me.pw_name, me.pw_dir), {})
    unit = tmp_path / "shoal.service"
    unit.write_text(plan(one, "linux", "system").text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "shoal" in line]
    assert ours == []
    unit.write_text(unit.read_text().replace("Restart=on-failure", "Restart=sometimes"))
    again = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "sometimes" in again.stderr, "the check sees what it is for"


@pytest.mark.skipif(sys.platform != "linux", reason="systemd's user units")
def test_install_writes_one_file_and_uninstall_removes_it(tmp_path: Path) -> None:
    own = {"XDG_CONFIG_HOME": str(tmp_path)}
    folder = tmp_path / "systemd" / "user"
    home = str(tmp_path / "home")
    written = run("install", "--scope", "user", "--no-start", "--home", home, **own)
    assert written.exit_code == 0, written.output
    [unit] = folder.iterdir()
    assert units.is_ours(unit.read_text())
    assert unit.stat().st_mode & 0o777 == 0o644
    assert f'"{home}"' in unit.read_text()
    beside = folder / "other.service"
    beside.write_text("[Unit]\n")
    removed = run("uninstall", "--scope", "user", "--no-stop", "--home", home, **own)
    assert removed.exit_code == 0, removed.output
    assert list(folder.iterdir()) == [beside]
    again = run("uninstall", "--scope", "user", "--no-stop", "--home", home, **own)
    assert again.exit_code == 4


@pytest.mark.skipif(sys.platform != "linux", reason="systemd's user units")
def test_a_file_of_somebody_else_is_neither_overwritten_nor_removed(tmp_path: Path) -> None:
    own = {"XDG_CONFIG_HOME": str(tmp_path)}
    words = ("--scope", "user", "--home", str(tmp_path / "home"))
    shown = run("install", *words, "--dry-run", "--json", **own)
    path = Path(plan_path(shown.output))
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    for act in (("install", "--no-start"), ("uninstall", "--no-stop")):
        refused = run(*act, *words, **own)
        assert refused.exit_code == 1
        assert "not" in refused.output and "shoal did" in refused.output
    assert path.read_text() == "mine"


def plan_path(document: str) -> str:
    found = re.search(r'"path": "([^"]+)"', document)
    assert found
    return found.group(1)


def test_a_dry_run_writes_nothing_and_shows_all(tmp_path: Path) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    words = ("--user", me, "--dry-run", "--home", str(tmp_path / "home"))
    for act in ("install", "uninstall"):
        shown = run(act, *words)
        assert shown.exit_code == 0, shown.output
        assert "would run" in shown.output and "--foreground" in shown.output
    assert list(tmp_path.iterdir()) == []


def test_without_the_right_to_it_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    at_home = replace(PLAIN, home="/srv/my home")
    monkeypatch.setattr(service.os, "geteuid", lambda: 65534)
    check = service._check_rights  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(CliError) as refused:
        check(plan(at_home, "linux", "system"), "install")
    remedy = refused.value.remedy
    assert "sudo" in remedy and "--scope user" in remedy and "--home '/srv/my home'" in remedy
    check(plan(at_home, "linux", "user"), "install")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as another")
def test_an_account_that_cannot_start_the_node_is_found_out_first(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config").mkdir(mode=0o700)
    (home / "config" / "shoal.toml").write_text("slots = 4\n")
    check = service._check_start  # pyright: ignore[reportPrivateUsage]
    root, nobody = (
        Service("shoal", sys.executable, str(home), Account(one.pw_name, one.pw_dir), {})
        for one in map(pwd.getpwnam, ("root", "nobody"))
    )
    check(root)
    with pytest.raises(CliError, match="nobody cannot run shoal"):
        check(nobody)


def test_a_user_that_is_not_there_is_refused() -> None:
    found = run("install", "--user", "nobody-of-that-name", "--dry-run")
    assert found.exit_code == 2
    assert "there is no user" in found.output


@pytest.mark.parametrize("code", [0, 3])
def test_a_node_in_the_foreground_fails_when_its_supervisord_does(code: int) -> None:
    with subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"]) as child:
        if code == 0:
            _hold(child)
        else:
            with pytest.raises(CliError, match="exit code 3"):
                _hold(child)


def test_a_node_in_the_foreground_fails_when_its_supervisord_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        child.kill()
        with pytest.raises(CliError, match="signal 9"):
            _hold(child)


@pytest.mark.parametrize(
    ("said", "code", "refused"),
    [
        ('{"node": "box", "processes": []}', 0, "already running"),
        ('{"node": "box", "processes": [], "answers": false}', 3, "already running"),
        ('{"error": {"message": "no node runs", "code": 3}}', 3, ""),
        ("Permission denied", 1, "cannot run shoal"),
    ],
)
def test_a_node_that_runs_already_is_told_from_none_whether_its_api_answers_or_not(
    tmp_path: Path, said: str, code: int, refused: str
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho '{said}'\nexit {code}\n")
    program.chmod(0o755)
    me = pwd.getpwuid(os.geteuid())
    found = Service("shoal", str(program), "", Account(me.pw_name, me.pw_dir), {})
    if not refused:
        _check_start(found)
        return
    with pytest.raises(CliError, match=refused):
        _check_start(found)


def test_no_service_is_installed_from_an_environment_that_may_be_deleted() -> None:
    temporary = Installation("temporary", "/c/env/bin/python", "/c/env")
    with pytest.raises(CliError, match="into the cache /c/env, which may be deleted") as raised:
        check_lasting(temporary)
    assert "uv tool install" in raised.value.remedy
    check_lasting(replace(temporary, kind="uv tool"))
