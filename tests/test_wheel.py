"""The wheel is whole: it has each file that the packages have, and its metadata are the project's.

`tests/processes/test_installs.py` installs it with uv, pipx and pip, and starts nodes from it.
"""

from __future__ import annotations

import tomllib
import zipfile
from email import message_from_string
from importlib import metadata
from pathlib import Path

import pytest

from bus.process.installation import DISTRIBUTION, PACKAGES, version_of
from tests.harness.built_wheel import built_wheel
from tests.harness.commands import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_AT_RUN_TIME = ("conf/tiny/README.md", "conf/docker/Dockerfile", "conf/docker/compose.yml")
"""Files of the packages that nothing opens at run time."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build the wheel once."""
    return zipfile.ZipFile(built_wheel(tmp_path_factory.mktemp("wheel")))


def in_tree() -> set[str]:
    """Return the files of the packages, as paths from the root."""
    return {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_has_every_file_of_the_packages_and_no_other(wheel: zipfile.ZipFile) -> None:
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == in_tree() - set(NOT_AT_RUN_TIME)
    assert {name.partition("/")[0] for name in packed} == set(PACKAGES)


def test_the_files_that_run_time_opens_by_path_are_the_trees(wheel: zipfile.ZipFile) -> None:
    for name in (
        "conf/default.toml",
        "conf/blas/one_row.c",
        "conf/blas/exp.cpp",
        "conf/tiny/model.safetensors",
        "conf/tiny/chat_template.jinja",
        "gateway/http/page/static/index.html",
        "runner/text/rendering/sandbox.py",
        "gateway/fetching/reading/page_process.py",
    ):
        assert wheel.read(name) == (ROOT / name).read_bytes()


def test_the_metadata_are_the_projects(wheel: zipfile.ZipFile) -> None:
    folder = f"shoal_llm-{PROJECT['version']}.dist-info"
    facts = message_from_string(wheel.read(f"{folder}/METADATA").decode())
    assert facts["Name"] == PROJECT["name"] == DISTRIBUTION
    assert facts["Version"] == version_of(Path(wheel.filename or "").name) == PROJECT["version"]
    assert "Private :: Do Not Upload" in facts.get_all("Classifier", [])
    needed = [line for line in facts.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert len(needed) == len(PROJECT["dependencies"])
    assert "shoal = gateway.cli.app:main" in wheel.read(f"{folder}/entry_points.txt").decode()


def test_no_dependency_has_a_package_of_the_same_name() -> None:
    owners = metadata.packages_distributions()
    for package in PACKAGES:
        assert set(owners.get(package, [])) <= {DISTRIBUTION, "shoal"}, package


def test_the_lock_pins_each_dependency() -> None:
    pinned = {
        line.partition("==")[0]
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if line[:1].isalpha()
    }
    for line in PROJECT["dependencies"]:
        name = line.replace("[", " ").replace(">", " ").replace("=", " ").split()[0]
        assert name.lower().replace("_", "-") in pinned, line
