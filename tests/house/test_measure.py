"""What the table counts, on trees that are made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.house import counting, totals
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


REPOSITORY = {
    "conf/default.toml": "# A name.\nname = 1\n[http]\nport = 2\nhost = 3\n",
    "docs/a.md": "The model makes way.\n",
    "docs/decisions" + "/a.md": "Made by `make docs`; do not edit.\n",
    "tests/test_a.py": '"""Told."""\none = 1\n',
    "tests/house/exceptions.py": "LIST: Mapping = {'a': 1, 'b': 2}\n",
    "tests/house/ceilings.toml": '"bus" = { "one" = 3, "told" = 1 }\n',
}


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
    write(tmp_path, {"bus/a.py": CODE, **REPOSITORY})
    assert main(["--root", str(tmp_path), "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert before["totals"]["settings"] == 3 and before["totals"]["pages"] == 2
    write(tmp_path, {"bus/b.py": CODE})
    lines = table(figures(Tree(tmp_path)), before["figures"]).splitlines()
    assert next(line.split()[1:4] for line in lines if line.startswith("files")) == ["1", ">", "2"]
    assert before["lists"]["class names in two modules"] == {}
    assert main(["--root", str(tmp_path), "--lists"]) == 0
    assert "Port: bus.a, bus.b" in capsys.readouterr().out


def test_totals_count_docs_names_findings_and_exceptions_and_show_their_change(
    tmp_path: Path,
) -> None:
    text = '"""A law."""\none = told = 1\ndef asked():\n    """Ask what is told."""\n'
    counted = totals.totals(write(tmp_path, {"bus/a.py": text, **REPOSITORY}))
    assert {name: n for name, n in counted.items() if n} == {
        "words of docs": 11,
        "  of them in generated pages": 7,
        "pages": 2,
        "decisions": 1,
        "settings": 3,
        "lines of product": 2,
        "docstrings of product": 2,
        "lines of docstrings of product": 2,
        "lines of tests": 2,
        "docstrings of tests": 1,
        "lines of docstrings of tests": 1,
        "bindings of the seven names, product": 2,
        "  one": 1,
        "  told": 1,
        "functions named by a participle, product": 1,
        "bindings of the seven names, tests": 1,
        "findings of the prose checker": 3,
        "  no-noun": 1,
        "  vocabulary": 2,
        "exceptions: LIST": 2,
        "exceptions: ceilings.toml, entries": 2,
    }
    lines = totals.table(counted, {"pages": 5, "settings": 3}).splitlines()
    assert "pages                                               5        2       -3" in lines
