"""One chat request through a real gateway and a real runner, counted by a profiler hook."""

from __future__ import annotations

import pytest

from tests.house import ceilings, walk


@pytest.mark.slow
def test_a_chat_request_enters_no_more_files_and_functions_than_its_ceilings() -> None:
    limits = ceilings.read(walk.CEILINGS)
    figures = walk.measure(limits).figures()
    print(walk.report(figures, limits))
    assert ceilings.faults(walk.held(figures), limits, walk.COMMAND) == []
