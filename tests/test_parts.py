"""Tests of how the parts of the suite are run: all of them, and what failed a second time."""

from pathlib import Path

import pytest

from tests.harness import parts

LUCKLESS = """
from pathlib import Path

def test_passes_the_second_time():
    seen = Path(__file__).with_name("seen")
    known = seen.exists()
    seen.touch()
    assert known
"""
ALL = (("-k", "second"), ("-k", "not second"))


def suite(root: Path, **files: str) -> Path:
    (root / "tests").mkdir()
    for name, text in files.items():
        (root / "tests" / f"test_{name}.py").write_text(text)
    (root / "tests" / "test_sound.py").write_text("def test_sound(): pass\n")
    (root / "pytest.ini").write_text("[pytest]\n")
    return root


def test_what_fails_once_is_run_again_and_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert parts.run(ALL, again=True, root=suite(tmp_path, luck=LUCKLESS)) == 0
    told = capfd.readouterr().out
    assert "1 passed, 1 deselected" in told, "the part after the failure ran too"
    assert "passed        tests/test_luck.py::test_passes_the_second_time" in told


def test_without_again_one_failure_is_enough(tmp_path: Path) -> None:
    assert parts.run(ALL, again=False, root=suite(tmp_path, luck=LUCKLESS)) == 1


def test_what_fails_twice_fails_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    broken = "def test_broken(): assert False\n"
    assert parts.run(ALL, again=True, root=suite(tmp_path, luck=LUCKLESS, broken=broken)) == 1
    told = capfd.readouterr().out
    assert "failed again  tests/test_broken.py::test_broken" in told
    assert "passed        tests/test_luck.py" in told


@pytest.mark.parametrize(
    ("text", "status"),
    [("import no_such_module\n", 2), ("import os\n\ndef test_second(): os._exit(7)\n", 7)],
    ids=["that cannot be read", "that ends the run"],
)
def test_a_run_that_broke_off_is_not_mended_by_another(
    tmp_path: Path, text: str, status: int
) -> None:
    assert parts.run(ALL, again=True, root=suite(tmp_path, bad=text, luck=LUCKLESS)) == status


def test_many_failures_are_not_run_again(tmp_path: Path) -> None:
    many = LUCKLESS + "".join(f"def test_second_{n}(): assert False\n" for n in range(10))
    assert parts.run(ALL, again=True, root=suite(tmp_path, many=many)) == 1
    assert (tmp_path / "tests" / "seen").exists()


def test_failures_of_an_earlier_run_are_forgotten(tmp_path: Path) -> None:
    root = suite(tmp_path, luck=LUCKLESS)
    assert parts.run(ALL, again=False, root=root) == 1
    (root / "tests" / "test_luck.py").write_text("def test_second_was_renamed(): pass\n")
    assert parts.run(ALL, again=True, root=root) == 0
