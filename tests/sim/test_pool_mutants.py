"""The pool's tests see what they are for: rules that are changed are noticed. One here; twenty when
proving, ten of them made by a tool (`SHOAL_TEST_MUTANTS=<seed>` makes the same again)."""

from __future__ import annotations

import ast
import os
import time
from pathlib import Path

import pytest

from tests.harness.mutations import Made, Mutant, Verdict, first_failure, mutated, sites
from tests.sim.mutants import ALL, DEADLINE_S, FAST, HAND, MODULES, copied, made, verdict

PROVING = bool(os.environ.get("SHOAL_PROVE"))
GIVEN = os.environ.get("SHOAL_TEST_MUTANTS", "")
SEED = int(GIVEN or 17)
BY_TOOL = 10
LEAST_CAUGHT = 19


@pytest.mark.slow
def test_a_rule_of_the_pool_that_is_changed_is_noticed() -> None:
    assert verdict(HAND[2], FAST).caught_by


def test_each_change_by_hand_fits_the_tree_and_each_of_the_tool_is_one() -> None:
    root = Path(__file__).parents[2]
    for mutant in HAND:
        text = (root / mutant.file).read_text()
        assert mutant.applied(text) != text
    text = (root / MODULES[1]).read_text()
    plain = ast.unparse(ast.parse(text))
    found = [mutated(MODULES[1], text, site) for site in sites(ast.parse(text))]
    assert len(found) > 10
    assert all(one.text != plain and compile(one.text, "x", "exec") for one in found)
    assert made(3, 4) == made(3, 4) != made(4, 4)


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.timeout(9000)
@pytest.mark.skipif(not (PROVING or GIVEN), reason="takes minutes")
def test_nineteen_of_twenty_mutants_of_the_pool_are_caught(tmp_path: Path) -> None:
    copied(tmp_path)
    began = time.monotonic()
    assert not first_failure(tmp_path, ALL, 1200.0), "the tests pass where nothing is changed"
    deadline_s = max(DEADLINE_S, 3.0 * (time.monotonic() - began))
    mutants: list[Mutant | Made] = [*HAND, *made(SEED, BY_TOOL)]
    print(f"\nseed {SEED}, each has {deadline_s:.0f} s")
    found: list[Verdict] = []
    for mutant in mutants:
        found.append(verdict(mutant, ALL, deadline_s))
        print(found[-1].line(), flush=True)
    caught = sum(bool(one.caught_by) for one in found)
    assert caught >= LEAST_CAUGHT, f"{caught} of {len(found)} are caught"
