"""The mutant tool: the same changes for the same seed, only where tests come, and verdicts that
are true."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.harness.covered_lines import CoveredLines
from tests.harness.mutants import candidates, chosen
from tests.harness.mutations import all_changes, mutated, sites
from tests.harness.planted_faults import FAULTS

ROOT = Path(__file__).parents[1]
TEXT = '''
def fits(need: int, free: int, told: list[str]) -> bool:
    """Say whether there is room."""
    if need > free and free >= 0:
        told.append(f"{need + 1} are needed")
        return False
    return True
'''


def test_each_kind_of_change_is_made_and_is_another_program() -> None:
    plain = ast.unparse(ast.parse(TEXT))
    found = [mutated("m.py", TEXT, one, all_changes) for one in sites(ast.parse(TEXT), all_changes)]
    assert all(one.text != plain and compile(one.text, "m.py", "exec") for one in found)
    said = {one.breaks for one in found}
    assert {
        "line 4: `need > free` is `need >= free`",
        "line 4: `need > free` is `need <= free`",
        "line 4: `need > free and free >= 0` is `need > free or free >= 0`",
        "line 4: `need > free and free >= 0` is `free >= 0`",
        "line 4: `0` is `1`",
        "line 6: `False` is `True`",
        "line 6: `return False` is `return None`",
    } <= said
    assert any(one.endswith("is `pass`") for one in said)


def test_only_executed_lines_are_changed_and_no_texts(tmp_path: Path) -> None:
    assert {one.line for one in candidates("m.py", TEXT, {5, 7}, 1)} == {5, 7}
    changed = [mutated("m.py", TEXT, one.site, all_changes).breaks
               for one in candidates("m.py", TEXT, {5}, 1)]  # fmt: skip
    assert len(changed) == 1 and changed[0].endswith("is `pass`"), "the message stays"


def test_a_seed_makes_the_same_changes_wherever_they_can_be_made(tmp_path: Path) -> None:
    for room in ("a", "b"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "m.py").write_text(TEXT)
    covered = CoveredLines({f"{room}/m.py": {4: ["t"], 7: ["t"]} for room in "ab"}, {"t": 0.1})
    made = chosen(tmp_path, covered, ["a", "b"], seed=1, count=9)
    assert [one.file for one in made] == ["a/m.py", "b/m.py", "a/m.py", "b/m.py"], "no line twice"
    (tmp_path / "a" / "m.py").write_text("X = 1\n" + TEXT)
    moved = CoveredLines({f"{room}/m.py": {5: ["t"], 8: ["t"]} for room in "a"}, {"t": 0.1})
    again = chosen(tmp_path, moved, ["a"], seed=1, count=9)
    assert [one.breaks.partition(":")[2] for one in again] == [
        one.breaks.partition(":")[2] for one in made if one.file == "a/m.py"
    ]


def test_the_tests_of_a_line_are_those_that_execute_least() -> None:
    lines = {"m.py": {1: ["wide", "near", *(f"of[{n}]" for n in range(9))], 2: ["wide"]}}
    covered = CoveredLines(lines, {})
    assert covered.chosen("m.py", 1, covered.sizes()) == [
        "near", *(f"of[{n}]" for n in range(5)), "wide"
    ]  # fmt: skip
    assert covered.chosen("m.py", 3, covered.sizes()) == []


def test_the_text_of_each_planted_fault_is_there() -> None:
    assert len(FAULTS) == 10
    for fault in FAULTS:
        text = (ROOT / fault.mutant.file).read_text()
        assert fault.mutant.applied(text) != text
        assert all((ROOT / one.partition("::")[0]).exists() for one in fault.tests)
