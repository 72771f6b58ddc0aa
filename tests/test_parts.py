"""Tests of how the parts of the suite are run: all of them, and what failed a second time."""

import re
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.conftest import pytest_collection_modifyitems
from tests.harness import counts, parts, parts_report
from tests.harness.cpu_of_files import CpuOfFiles

LUCKLESS = """
from pathlib import Path

def test_passes_the_second_time():
    seen = Path(__file__).with_name("seen")
    known = seen.exists()
    seen.touch()
    assert known
"""
ALL = (
    parts.Part("second", ("tests", "-k", "second")),
    parts.Part("first", ("tests", "-k", "not second")),
)


@pytest.fixture(autouse=True)
def plain_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suites here need no plugin of others', and most of a start's time is theirs; nor do they
    multiply matrices, for which libraries are measured."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(parts, "of_tests", dict)


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
    assert parts.run(ALL, again=False, root=root) == 1, "without `again` one failure is enough"
    (root / "tests" / "test_luck.py").write_text("def test_second_was_renamed(): pass\n")
    assert parts.run(ALL, again=True, root=root) == 0


BESIDE = """
import os, time
from pathlib import Path

runs = Path(__file__).with_name("runs")

def test_second_is_nice():
    until = time.monotonic() + 60
    while not runs.exists():
        assert time.monotonic() < until, "the other part runs meanwhile"
        time.sleep(0.02)
    assert os.nice(0) == 19

def test_first():
    runs.touch()
    assert os.nice(0) == 0
"""


def test_a_part_beside_another_has_the_lowest_priority_and_its_failures_are_run_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = suite(tmp_path, luck=LUCKLESS, beside=BESIDE)
    assert parts.run([replace(ALL[0], is_beside=True), ALL[1]], again=True, root=root) == 0
    lines = capfd.readouterr().out
    assert "1 failed, 1 passed, 2 deselected" in lines and "2 passed, 2 deselected" in lines
    assert "passed        tests/test_luck.py::test_passes_the_second_time" in lines
    minutes = dict(re.findall(r"^(second|first|again|in all) +(\S+)", lines, re.MULTILINE))
    assert minutes.keys() == {"second", "first", "again", "in all"}


OF_A_FILE = re.compile(r"^pytestmark = \[?[^]]*mark\.(nodes)\b", re.MULTILINE)
OF_A_TEST = re.compile(r"^(@| +marks=)pytest\.mark\.nodes\b", re.MULTILINE)


class Item:
    """As much of a file's tests as our hook of pytest asks for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text()
        self.markers = set(OF_A_FILE.findall(self.text))

    def add_marker(self, name: object) -> None:
        self.markers.add(str(name))

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.markers else None


def collects(part: parts.Part, file: str) -> bool:
    """Whether pytest looks for tests of a part in this file."""
    ignored = [
        word.removeprefix("--ignore=") for word in part.words if word.startswith("--ignore=")
    ]
    places = [word for word in part.words[: part.words.index("-m")] if not word.startswith("-")]
    under = [any(Path(file).is_relative_to(one) for one in them) for them in (places, ignored)]
    return under == [True, False]


def test_each_file_of_tests_is_in_the_one_part_that_its_markers_ask_for() -> None:
    files = sorted((parts.ROOT / "tests").rglob("test_*.py"))
    items = [Item(file) for file in files]
    pytest_collection_modifyitems(items)  # pyright: ignore[reportArgumentType]
    for item in items:
        file = str(item.path.relative_to(parts.ROOT))
        (part,) = (part for part in parts.PARTS if collects(part, file))
        assert (part.name == "nodes") == ("nodes" in item.markers), file
        assert not OF_A_TEST.search(item.text), f"mark all of {file}: a part has whole files"


COUNTS = """
from tests.harness.counts import count

def test_starts_something():
    count("nodes", 2)
    count("testbeds")
"""
DAEMON = """
import subprocess, sys

def test_leaves_a_daemon():
    code = "import os, signal; os.fork() and os._exit(0); os.setsid(); print(1, flush=True)"
    code += "; os.close(1); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as one:
        assert one.stdout.readline() == b"1\\n"
"""


def test_a_part_that_starts_more_than_its_ceiling_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(parts.ROOT))
    root = suite(tmp_path, counts=COUNTS)
    whole = [parts.Part("whole", ("tests",))]
    assert parts.run(whole, again=False, root=root, ceilings={"whole": {"nodes": 2}}) == 0
    assert parts.run(whole, again=False, root=root, ceilings={"whole": {"nodes": 1}}) == 1
    told = capfd.readouterr().out
    assert "too many nodes in part whole: 2; the limit is 1" in told


@pytest.mark.skipif(sys.platform != "linux", reason="daemons are adopted on Linux alone")
def test_what_a_part_leaves_is_ended_and_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = suite(tmp_path, daemon=DAEMON)
    assert parts.run([parts.Part("whole", ("tests",))], again=False, root=root) == 0
    told = capfd.readouterr().out
    assert "still ran when their part ended, and were killed:" in told
    pid = int(re.findall(r"whole: (\d+) ", told)[0])
    assert not psutil.pid_exists(pid)


def test_cpu_seconds_are_noted_for_each_file_and_the_dearest_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "counts"
    monkeypatch.setenv(counts.VARIABLE, str(notes))
    measured = CpuOfFiles()
    measured.note("tests/test_before.py", daemons=False)
    began = time.process_time()
    while time.process_time() - began < 0.1:
        pass
    for name in ("tests/test_dear.py", "tests/test_cheap.py"):
        measured.note(name, daemons=False)
    counts.count("nodes", 2)
    found = counts.cpu_of_files(notes)
    assert found["tests/test_dear.py"] > 0.05 > found["tests/test_cheap.py"] >= 0
    assert counts.counted(notes) == {"nodes": 2}
    ran = parts_report.Ran("one", 0, 1.0, 1.0, (), Counter(), (), found)
    told = [line.split()[-1] for line in parts_report.report([ran], 1.0) if ".py" in line]
    assert told.index("tests/test_dear.py") < told.index("tests/test_cheap.py")
