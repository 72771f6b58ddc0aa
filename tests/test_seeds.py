"""A test that draws says its seed, and takes one."""

from __future__ import annotations

import pytest

from tests.harness import seeds


def test_a_seed_is_printed_and_may_be_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(seeds, "PROVING", False)
    assert seeds.seed_for("NOWHERE", 7) == 7
    monkeypatch.setenv("SHOAL_TEST_NOWHERE", "11")
    assert seeds.seed_for("NOWHERE", 7) == 11
    assert capsys.readouterr().out.splitlines()[-1] == "seed: SHOAL_TEST_NOWHERE=11"
