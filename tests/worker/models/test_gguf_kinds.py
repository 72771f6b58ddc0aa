"""Folders with GGUF files as people have them: each is listed, or has a reason and a remedy.
`tests/processes/test_gguf_folders.py` asks a node for the same."""

from __future__ import annotations

import pytest

from tests.harness.gguf_kinds import GOOD, NO_MODEL, UNLOADABLE
from worker.models.weights import Shelf, Weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """Scan one folder with all of them."""
    folder = tmp_path_factory.mktemp("models")
    for name, kind in {**GOOD, **UNLOADABLE, **NO_MODEL}.items():
        kind.make(folder / name)
    made = Weights(Shelf({}, (folder,), None, float32=True))
    cards = {card.model for card in made.look()}
    assert cards == {*GOOD, *UNLOADABLE}
    return made


@pytest.mark.parametrize("name", NO_MODEL)
def test_each_file_that_is_no_model_has_its_reason_and_remedy(weights: Weights, name: str) -> None:
    (notice,) = [each for each in weights.passed_over if each.name == name]
    kind = NO_MODEL[name]
    assert kind.words in f"{notice.why}; {notice.remedy}" and not notice.taken
    assert notice.remedy and kind.remedy in notice.remedy


def test_nothing_else_is_said_but_of_settings_without_effect(weights: Weights) -> None:
    taken = {each.name: each.why for each in weights.passed_over if each.name not in NO_MODEL}
    assert taken.keys() == {"with-adapters"}
    assert GOOD["with-adapters"].words in taken["with-adapters"]


def test_no_notice_has_a_character_that_acts_on_a_terminal(weights: Weights) -> None:
    assert all(each.why.isprintable() for each in weights.passed_over)
