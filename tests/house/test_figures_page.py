"""The page of figures says what was measured, and names what was not run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.dialects_flat_out import rows_of
from tests.harness import client_results, figures_page

FAULT = {"fault": "kill -9 master", "client saw": "nothing", "seconds": 0.8, "bound": 3.0}
PLANE = {"ms_p50": 0.4, "ms_p95": 0.9, "ms_p99": 1.7}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PROVED", "MEASURED"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(figures_page, name, tmp_path / name)
    return tmp_path


def test_parts_that_were_not_run_are_named(folders: Path) -> None:
    page = figures_page.section()
    for target in ("prove-cluster", "prove-faults", "prove-clients", "prove-latency", "bench"):
        assert f"`make {target}`" in page
    assert "`make bench-cluster`" in page


def test_the_last_row_of_each_client_stands_in_its_table(folders: Path) -> None:
    call = {"client": "a", "version": "1.0", "call": "chat", "ok": True, "why": "", "seconds": 0.5}
    bad = {**call, "call": "stream", "ok": False, "why": "no end"}
    kept = folders / "PROVED" / "clients.jsonl"
    client_results.keep(client_results.by_client([call, bad]), kept)
    assert "| a | 1.0 | 2 | 1 | stream: no end | 1 |" in figures_page.section()
    client_results.keep(client_results.by_client([call, call]), kept)
    page = figures_page.section()
    assert "| a | 1.0 | 2 | 2 |  | 1 |" in page and "no end" not in page


def test_what_was_measured_stands_in_its_row(folders: Path) -> None:
    (folders / "PROVED" / "faults.jsonl").write_text(json.dumps(FAULT) + "\n")
    (folders / "MEASURED" / "planes.json").write_text(json.dumps({"control": PLANE}))
    page = figures_page.section()
    assert "| kill -9 master | nothing | 0.8 | 3.0 |" in page
    assert "| control | 0.40 | 0.90 | 1.70 |" in page
    assert "not run: `make prove-cluster`" in page and "make prove-faults" not in page


def test_what_a_dialect_costs_stands_beside_what_it_is_held_to(folders: Path) -> None:
    rounds = [{"chat": 5.0, "messages": 6.0, "chat of 0": 10.0}, {"chat": 4.0, "messages": 6.0}]
    rows = rows_of([rounds[0], {**rounds[1], "chat of 0": 4.0}, rounds[0]])
    (folders / "MEASURED" / "dialects.json").write_text(json.dumps(rows))
    page = figures_page.section()
    assert "| chat | 5.00 | 4.00 to 5.00 | 0.50 x chat of 0 | 1.1 |" in page
    assert "| messages | 6.00 | 6.00 to 6.00 | 1.20 x chat | 2.0 |" in page
    assert "| chat of 0 | 10.00 | 4.00 to 10.00 |  |  |" in page


def test_the_page_names_machine_and_commit(folders: Path) -> None:
    page = figures_page.section()
    assert "| commit | `" in page and "| mlx, mlx-lm, pyzmq | " in page
