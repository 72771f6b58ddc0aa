"""What the page of families says is what is measured here and now, family by family."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from importlib.metadata import version

import pytest

from tests.harness.families_page import text
from tests.harness.family_facts import FILE, YES, measured
from tests.harness.family_settings import can_be_built, known_families
from tests.harness.seeds import seed_for
from worker.models.layers import TENSOR_FAMILIES, why_unsplit

SAID = json.loads(FILE.read_text())
FAMILIES: dict[str, dict[str, str]] = SAID["families"]
SAMPLE = 2


def test_it_is_of_the_installed_library_and_of_all_that_can_be_built() -> None:
    assert SAID["mlx_lm"] == version("mlx-lm")
    assert {name for name in known_families() if can_be_built(name)} == FAMILIES.keys()
    assert len(FAMILIES) >= 70


@pytest.mark.slow
def test_a_sample_of_families_is_as_it_says() -> None:
    """Those whose row is like no other's, and some by chance."""
    by_chance = random.Random(seed_for("FAMILIES", 5)).sample(sorted(FAMILIES), SAMPLE)
    names = sorted({*by_chance, "gemma3_text"})
    found = {name: asdict(facts) for name, facts in measured(names).items()}
    assert found == {name: FAMILIES[name] for name in names}


@pytest.mark.proof
def test_every_family_is_as_it_says() -> None:
    assert {name: asdict(facts) for name, facts in measured().items()} == FAMILIES


def test_placement_makes_no_group_of_what_was_found_to_be_none() -> None:
    """What it does not know is refused by the runner; what was found out it should know."""
    for name, facts in FAMILIES.items():
        if why_unsplit(name, {}):
            assert facts["pipeline"] != YES or name.startswith("gemma4"), name
        if facts["tensor"] == YES:
            assert name in TENSOR_FAMILIES, name


def test_the_page_names_each_reason_once() -> None:
    page = text(SAID)
    for reason in {why for facts in FAMILIES.values() for why in facts.values()} - {YES}:
        assert page.count(f". {reason}\n") == 1
