"""The page's files: what browsers are given, under which policy, and all of them in the wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gateway.access import is_open
from gateway.http.page.files import POLICY, STATIC, TYPES, page_files

ROOT = Path(__file__).resolve().parents[3]
MOST_BYTES, MOST_FILES = 300_000, 15
REACHES = re.compile(r"""https?://(?!www\.w3\.org)|@import|url\(""")
INLINE = re.compile(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\son\w+=")
IMPORT = re.compile(r'^import .* from "\./([\w.]+)";$', re.MULTILINE)
MARKUP = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function")


def text_of(name: str) -> str:
    return page_files()[name].data.decode()


def scripts() -> list[str]:
    return [name for name in page_files() if name.endswith(".js")]


def test_the_files_are_few_and_small_and_each_is_given() -> None:
    assert {path.name for path in STATIC.iterdir()} == set(page_files())
    assert len(page_files()) <= MOST_FILES
    assert sum(len(file.data) for file in page_files().values()) <= MOST_BYTES
    assert {Path(name).suffix for name in page_files()} == set(TYPES)


@pytest.mark.parametrize("name", sorted(page_files()))
def test_a_file_reaches_for_nothing_elsewhere_and_has_nothing_inline(name: str) -> None:
    text = text_of(name)
    assert not REACHES.findall(text)
    if name.endswith(".html"):
        assert not INLINE.findall(text)
    assert not [word for word in MARKUP if word in text]
    assert len(text.splitlines()) <= 400


def test_every_module_is_loaded_early_and_every_import_is_there() -> None:
    page = text_of("index.html")
    assert set(re.findall(r"/dashboard/([\w.]+)", page)) == set(page_files()) - {"index.html"}
    for name in scripts():
        assert set(IMPORT.findall(text_of(name))) <= set(scripts())


def test_what_people_read_stands_in_the_table_of_texts() -> None:
    """Children and labels that are words in quotes: none beside the table."""
    told = re.compile(r"""(?:title|placeholder|"aria-label"): "[A-Za-z]|\}, "[A-Za-z]{2}""")
    for name in scripts():
        if name != "texts.js":
            assert not told.findall(text_of(name)), name


def test_the_policy_begins_with_nothing_and_allows_this_server_alone() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules.pop("default-src") == "'none'"
    assert rules.pop("require-trusted-types-for") == "'script'"
    assert set(rules.values()) <= {"'self'", "'none'"}
    assert {"base-uri", "form-action", "frame-ancestors"} <= set(rules)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", True),
        ("/dashboard", True),
        ("/dashboard/main.js", True),
        ("/dashboards", False),
        ("/metrics/stream", False),
        ("/state", False),
    ],
)
def test_the_pages_files_alone_are_open(path: str, expected: bool) -> None:
    assert is_open(path) is expected


@pytest.mark.slow
def test_a_wheel_has_all_of_them(tmp_path: Path) -> None:
    words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    # a copy, for setuptools leaves its folders beside the source
    tree = tmp_path / "tree"
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    told = subprocess.run(listed, cwd=ROOT, check=True, timeout=60, capture_output=True, text=True)
    for name in filter(None, told.stdout.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    command = [sys.executable, *words, "--wheel-dir", str(tmp_path), str(tree)]
    subprocess.run(command, check=True, timeout=110, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    prefix = "gateway/http/page/static/"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.removeprefix(prefix) for name in names if name.startswith(prefix)} == set(
        page_files()
    )
