"""What the table counts, on trees that are made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.house import counting
from tests.house.measure import figures, main, table
from tests.house.trees import Tree

CODE = '''"""A law."""

# a comment
class Port:
    """A port."""

    number: int
    """Below a field."""

    def open(self) -> str:
        return (
            "two"
            "lines"
        )
'''


def write(root: Path, files: dict[str, str]) -> Tree:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Tree(root)


def test_a_floor_counts_its_files_and_folders_and_an_import_between_two_once(
    tmp_path: Path,
) -> None:
    tree = write(
        tmp_path,
        {
            "bus/__init__.py": "",
            "bus/__main__.py": "from bus.service import run\nimport bus.service\n",
            "bus/service.py": "from bus.wire.ids import A\nfrom bus.wire.codec import B\n",
            "bus/wire/ids.py": "import bus\n",
            "bus/wire/codec.py": "from bus.wire.ids import A\n",
        },
    )
    assert counting.top_floor(tree, "bus") == ["__main__", "service", "wire"]
    assert list(counting.room_imports(tree, "bus")) == [
        ("__main__", "service"),
        ("service", "wire"),
    ]


def test_lines_of_code_leave_out_docstrings_comments_and_blanks(tmp_path: Path) -> None:
    [module] = write(tmp_path, {"bus/a.py": CODE}).product
    assert counting.code_lines(module) == 7


def test_runner_mlx_is_counted_apart_from_runner(tmp_path: Path) -> None:
    files = {"runner/mlx/a.py": CODE, "runner/b.py": ""}
    counted = figures(write(tmp_path, files))
    assert counted["files"] | {"sum": 0} == {**counted["files"], "runner": 1, "conf": 0, "sum": 0}
    assert (counted["files"]["runner/mlx"], counted["files"]["sum"]) == (1, 2)
    assert counted["things on the floor"]["runner"] == 2


def test_the_table_shows_before_and_after_where_they_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, {"bus/a.py": CODE})
    assert main(["--root", str(tmp_path), "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    write(tmp_path, {"bus/b.py": CODE})
    lines = table(figures(Tree(tmp_path)), before["figures"]).splitlines()
    assert next(line.split()[1:4] for line in lines if line.startswith("files")) == ["1", ">", "2"]
    assert before["lists"]["class names in two modules"] == {}
    assert main(["--root", str(tmp_path), "--lists"]) == 0
    assert "Port: bus.a, bus.b" in capsys.readouterr().out
