"""The page of figures says what was measured, and names what was not run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness import figures_page

FAULT = {"fault": "kill -9 master", "client saw": "nothing", "seconds": 0.8, "bound": 3.0}
PLANE = {"ms_p50": 0.4, "ms_p95": 0.9, "ms_p99": 1.7}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PROVED", "MEASURED"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(figures_page, name, tmp_path / name)
    return tmp_path


def test_parts_that_were_not_run_are_named(folders: Path) -> None:
    page = figures_page.page()
    for target in ("prove-cluster", "prove-faults", "prove-latency", "bench", "bench-cluster"):
        assert f"`make {target}`" in page


def test_what_was_measured_stands_in_its_row(folders: Path) -> None:
    (folders / "PROVED" / "faults.jsonl").write_text(json.dumps(FAULT) + "\n")
    (folders / "MEASURED" / "planes.json").write_text(json.dumps({"control": PLANE}))
    page = figures_page.page()
    assert "| kill -9 master | nothing | 0.8 | 3.0 |" in page
    assert "| control | 0.40 | 0.90 | 1.70 |" in page
    assert "not run: `make prove-cluster`" in page and "make prove-faults" not in page


def test_the_page_names_machine_and_commit(folders: Path) -> None:
    page = figures_page.page()
    assert "| commit | `" in page and "| mlx, mlx-lm, pyzmq | " in page
