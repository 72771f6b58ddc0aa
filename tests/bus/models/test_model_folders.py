"""Which folders are deleted, and which stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.models.held_models import FolderKept
from bus.models.model_folders import delete_aside, own_folder, put_aside


def delete(folder: Path, models: Path) -> None:
    delete_aside(put_aside(folder, models), folder, models)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    made = tmp_path / "models"
    for name in ("m", "owner/a", "owner/b"):
        (made / name).mkdir(parents=True)
        (made / name / "config.json").write_text("{}")
    return made


def test_a_folder_goes_and_its_owners_when_nothing_is_left_there(models: Path) -> None:
    for name in ("m", "owner/a"):
        delete(own_folder(models / name, models), models)
    assert [path.name for path in models.iterdir()] == ["owner"]
    delete(own_folder(models / "owner/b", models), models)
    assert models.is_dir() and not any(models.iterdir())


def test_what_lies_elsewhere_stays(models: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "cache"
    elsewhere.mkdir()
    (models / "linked").symlink_to(elsewhere)
    for folder in (elsewhere, models / "linked", models, models / "m/../..", models / "gone"):
        with pytest.raises(FolderKept) as kept:
            own_folder(folder, models)
        assert kept.value.remedy
    assert elsewhere.is_dir()


def test_a_program_of_an_engines_file_has_no_folder(models: Path, tmp_path: Path) -> None:
    with pytest.raises(FolderKept, match=r"is a program of .*engines\.toml") as kept:
        own_folder(tmp_path / "engines.toml", models)
    assert kept.value.remedy == "delete the model's table from that file"


def test_what_the_system_forbids_is_said(models: Path) -> None:
    folder = own_folder(models / "m", models)
    delete(folder, models)
    with pytest.raises(FolderKept, match="could not be deleted: No such file"):
        delete(folder, models)
