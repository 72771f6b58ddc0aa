"""Each kind of installation, from the files that its installer wrote, and the commands for it."""

import shutil
import sys
from pathlib import Path

import pytest

from bus.process.installation.commands import (
    NewWheel,
    add_command,
    in_order,
    pip_command,
    upgrade_of,
    version_of,
)
from bus.process.installation.evidence import (
    CACHE_TAG,
    command_to_add,
    evidence_in,
    own_installation,
)
from bus.process.installation.kinds import Evidence, Installation, installation_of

RECORDED = Path(__file__).with_name("recorded")
"""Folders of files that uv 0.13.9, pipx 1.18.4 and pip 23.2 wrote, with shortened paths."""
PYTHON = "/env/bin/python"
OLD = "/home/ann/dist/shoal_llm-0.1.0-py3-none-any.whl"
NEW = NewWheel("/new/shoal_llm-0.2.0-py3-none-any.whl", "0.2.0", "/new/constraints.txt")
SAME = NewWheel(OLD, "0.1.0")


def recorded(case: str, prefix: str = "/env") -> Installation:
    """Return the installation that the recorded files of a case describe."""

    def text(name: str) -> str:
        path = RECORDED / case / name
        return path.read_text() if path.exists() else ""

    return installation_of(
        Evidence(
            python=PYTHON,
            prefix=prefix,
            installer=text("INSTALLER").strip(),
            direct_url=text("direct_url.json"),
            uv_receipt=text("uv-receipt.toml"),
            pipx_metadata=text("pipx_metadata.json"),
        )
    )


def lines(case: str, wheel: NewWheel | None = None) -> list[str]:
    """Return the command lines that upgrade the installation of a case."""
    return [" ".join(words) for words in upgrade_of(recorded(case), "0.1.0", wheel).commands]


@pytest.mark.parametrize(
    ("case", "kind", "source"),
    [
        ("uv-tool-wheel", "uv tool", OLD),
        ("uv-tool-pinned", "uv tool", OLD),
        ("uv-tool-index", "uv tool", ""),
        ("uv-tool-editable", "uv tool", "/home/ann/shoal"),
        ("pipx-wheel", "pipx", OLD),
        ("pipx-index", "pipx", ""),
        ("pip-wheel", "environment", OLD),
        ("uv-pip-wheel", "environment", OLD),
        ("pip-index", "environment", ""),
        ("pip-folder", "environment", "/home/ann/shoal"),
        ("pip-git", "environment", "git+https://example.org/shoal.git@main"),
        ("clone", "clone", "/home/ann/shoal"),
        ("debian", "unknown", ""),
    ],
)
def test_the_kind_and_the_source_follow_from_the_recorded_files(
    case: str, kind: str, source: str
) -> None:
    made = recorded(case)
    assert (made.kind, made.source) == (kind, source)
    assert made.words


def test_an_environment_in_a_cache_is_temporary_whatever_its_files_say() -> None:
    for case in ("pipx-wheel", "uv-pip-wheel"):
        text = (RECORDED / case / "direct_url.json").read_text()
        made = installation_of(Evidence(PYTHON, "/c/env", in_cache=True, direct_url=text))
        upgrade = upgrade_of(made, "0.1.0", NEW)
        assert made.kind == "temporary" and not upgrade.commands
        assert "uv tool install" in upgrade.note


def test_damaged_files_count_as_missing() -> None:
    damaged = Evidence(PYTHON, "/env", False, "pip", "{", "[tool", "[]")
    assert installation_of(damaged).kind == "environment"


def test_a_new_wheel_is_installed_with_its_tested_versions() -> None:
    pins = "/new/constraints.txt"
    assert lines("uv-tool-wheel", NEW) == [f"uv tool install --constraint {pins} {NEW.path}"]
    assert lines("uv-tool-pinned", NEW) == [
        f"uv tool install --constraint {pins} --with nvidia-ml-py "
        f"--with opentelemetry-proto>=1.45 {NEW.path}[otlp]"
    ]
    assert lines("pipx-wheel", NEW) == [
        f"pipx install --force --pip-args=--constraint {pins} {NEW.path}"
    ]
    assert lines("pip-wheel", NEW) == [f"{PYTHON} -m pip install --constraint {pins} {NEW.path}"]
    assert lines("uv-pip-wheel", NEW) == [
        f"uv pip install --python {PYTHON} --constraint {pins} {NEW.path}"
    ]


def test_a_wheel_of_the_installed_version_is_installed_again() -> None:
    assert lines("uv-tool-wheel", SAME) == [f"uv tool install --reinstall-package shoal-llm {OLD}"]
    assert lines("pip-wheel", SAME) == [
        f"{PYTHON} -m pip install {OLD}",
        f"{PYTHON} -m pip install --force-reinstall --no-deps {OLD}",
    ]


def test_without_a_wheel_the_source_is_installed_again() -> None:
    assert lines("uv-tool-index") == ["uv tool upgrade shoal-llm"]
    assert lines("pipx-index") == ["pipx upgrade shoal-llm-next"]
    assert lines("pip-index") == [f"{PYTHON} -m pip install --upgrade shoal-llm"]
    assert lines("uv-tool-editable") == [
        "git -C /home/ann/shoal pull",
        "uv tool install --reinstall-package shoal-llm --editable /home/ann/shoal",
    ]
    assert lines("pip-folder")[:2] == [
        "git -C /home/ann/shoal pull",
        f"{PYTHON} -m pip install /home/ann/shoal",
    ]
    assert lines("pip-git")[1].endswith("--no-deps git+https://example.org/shoal.git@main")


def test_a_clone_is_pulled_and_its_environment_made_again() -> None:
    here = upgrade_of(recorded("clone", "/home/ann/shoal/.venv"), "0.1.0", None)
    assert here.commands[1] == ("make", "-C", "/home/ann/shoal", ".venv/.ready")
    assert lines("clone") == [
        "git -C /home/ann/shoal pull",
        f"{PYTHON} -m pip install --editable /home/ann/shoal",
    ]


def test_a_wheel_that_is_not_known_yet_is_left_to_the_user() -> None:
    upgrade = upgrade_of(recorded("uv-tool-wheel"), "0.1.0", None)
    assert upgrade.commands == (("uv", "tool", "install", "WHEEL"),) and "path" in upgrade.note
    unknown = upgrade_of(recorded("debian"), "0.1.0", None)
    assert unknown.commands == () and "debian" in unknown.note


@pytest.mark.parametrize(
    ("case", "line"),
    [
        ("uv-tool-wheel", f"uv tool install --with py-spy {OLD}"),
        ("uv-tool-index", "uv tool install --with py-spy shoal-llm"),
        ("pipx-index", "pipx inject shoal-llm-next py-spy"),
        ("pip-wheel", f"{PYTHON} -m pip install py-spy"),
        ("uv-pip-wheel", f"uv pip install --python {PYTHON} py-spy"),
        ("clone", f"{PYTHON} -m pip install py-spy"),
    ],
)
def test_a_package_is_added_by_the_tool_that_installed_shoal(case: str, line: str) -> None:
    assert add_command(recorded(case), "py-spy") == line


def test_packages_are_removed_by_the_pip_that_the_environment_has() -> None:
    for case, line in {
        "uv-tool-wheel": f"uv pip uninstall --python {PYTHON} mlx-cpu",
        "pipx-wheel": "pipx runpip shoal-llm uninstall mlx-cpu",
        "pip-wheel": f"{PYTHON} -m pip uninstall mlx-cpu",
    }.items():
        assert " ".join(pip_command(recorded(case), "uninstall", "mlx-cpu")) == line


def test_names_of_wheels_give_versions_and_versions_have_an_order() -> None:
    assert version_of("shoal_llm-0.10.2-py3-none-any.whl") == "0.10.2"
    assert version_of("shoal_llm-0.2.0rc1-py3-none-any.whl") == "0.2.0rc1"
    assert version_of("shoal-0.1.0-py3-none-any.whl") == version_of("shoal_llm.whl") == ""
    assert in_order("0.9.1") < in_order("0.10.0") and in_order("unknown") == ()


def test_evidence_is_read_from_an_environment_and_from_the_caches_above_it(tmp_path: Path) -> None:
    prefix = tmp_path / "venvs" / "shoal"
    prefix.mkdir(parents=True)
    (prefix / CACHE_TAG).touch()  # uv marks its own environments
    shutil.copy(RECORDED / "uv-tool-wheel" / "uv-receipt.toml", prefix)
    evidence = evidence_in(prefix, PYTHON, None)
    assert not evidence.in_cache and installation_of(evidence).kind == "uv tool"
    (tmp_path / CACHE_TAG).touch()
    assert installation_of(evidence_in(prefix, PYTHON, None)).kind == "temporary"


def test_the_environment_of_these_tests_is_a_clone() -> None:
    made = own_installation()
    assert made.kind == "clone" and Path(made.source).samefile(Path(__file__).parents[4])
    assert command_to_add("py-spy") == f"{sys.executable} -m pip install py-spy"
