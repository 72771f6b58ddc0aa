"""The laws of the house, held against the product as it is."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.house import counts, private_names
from tests.house.breaches import unexcused
from tests.house.loads import HELP, importing, loaded_by, pure_rooms
from tests.house.tables import LOADS
from tests.house.trees import ROOT, Tree, within


@cache
def product() -> Tree:
    return Tree()


def hold(law: str) -> None:
    """Fail with every fault of a law, whole and one per line."""
    found = unexcused(product(), law)
    assert not found, "\n" + "\n".join(found)


def test_floors_and_rooms_hold_no_more_than_a_glance_takes_in() -> None:
    hold("FLOORS")


def test_a_room_with_a_door_is_entered_by_its_door() -> None:
    hold("DOORED_ROOMS")


def test_every_room_has_a_door_but_for_those_that_are_listed() -> None:
    hold("ROOMS_WITHOUT_A_DOOR")


def test_no_public_class_name_stands_in_two_modules() -> None:
    hold("NAMES_IN_TWO_MODULES")


def test_no_class_has_over_twenty_methods() -> None:
    hold("WIDE_CLASSES")


def test_no_constructor_takes_over_eight_parameters() -> None:
    hold("WIDE_CONSTRUCTORS")


def test_a_module_is_pure_unless_its_first_line_says_whom_it_talks_to() -> None:
    hold("IMPURE_MODULES")


def test_a_module_opens_with_its_law_and_stays_small() -> None:
    hold("OPENINGS")


def test_doors_and_public_classes_have_docstrings_and_none_speaks_in_riddles() -> None:
    hold("DOCSTRINGS")


def test_every_path_that_a_page_names_exists() -> None:
    hold("MISSING_PATHS")


def test_every_word_has_one_row_in_the_glossary() -> None:
    hold("WORDS_TWICE")


def test_every_package_with_rooms_has_an_exhaustive_contract_of_layers() -> None:
    hold("WITHOUT_LAYERS")


def test_private_names_of_a_library_stand_in_one_file() -> None:
    hold("PRIVATE_NAMES")


def test_libraries_with_private_names_are_pinned_and_installed_at_the_version_read() -> None:
    """Fails after an update: read the file again, then change `private_names.HELD`."""
    pins = {name: (ROOT / name).read_text() for name in ("pyproject.toml", "requirements.lock")}
    installed = {library: version(library) for library in private_names.HELD}
    assert private_names.stale(product(), pins, installed) == []


@pytest.mark.parametrize("law", counts.LAWS)
def test_no_figure_of_the_house_exceeds_its_ceiling(law: str) -> None:
    found = counts.faults(product(), law)
    assert not found, "\n" + "\n".join(found)


def code_of(row: str) -> str:
    """Return the code that loads what a row of the table is about."""
    names = [module.name for module in product().product if within(module.name, row)]
    return HELP if row == "shoal --help" else importing(names or [row])


@pytest.mark.parametrize("libraries", sorted(set(LOADS.values())), ids=" ".join)
def test_rows_load_no_libraries_but_those_of_the_table(libraries: tuple[str, ...]) -> None:
    """Rows of the same libraries share a process: most of their modules are the same, too."""
    rows = [row for row, loads in LOADS.items() if loads == libraries]
    assert tuple(loaded_by("".join(map(code_of, rows)))) == libraries, f"see each of {rows}"


@pytest.mark.proof
@pytest.mark.parametrize("row", LOADS)
def test_a_row_loads_the_libraries_that_its_table_names_and_no_others(row: str) -> None:
    assert tuple(loaded_by(code_of(row))) == LOADS[row]


def test_every_room_that_is_all_pure_has_a_row_in_the_table_of_loads() -> None:
    assert sorted(set(pure_rooms(product())) - set(LOADS)) == []


def test_import_contracts_hold() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--config", ".importlinter"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
