"""What a worker does next, by its slots and what it knows so far."""

from __future__ import annotations

import pytest

from bus.replica.state import ClusterState
from bus.wire.ids import NodeId
from worker.slots.actions import StartSlot
from worker.slots.admission import NodeInventory
from worker.slots.facts import Reported
from worker.slots.reconcile import reconcile
from worker.slots.table import Slot, SlotTable


@pytest.mark.parametrize("settled", [True, False])
def test_no_spare_is_started_before_it_is_known_which_runners_live(settled: bool) -> None:
    table = SlotTable({"00": Slot("00")})
    here = NodeInventory(
        NodeId("n"), settled, None, frozenset(), load_deadline_s=30.0, now=100.0, spare=True
    )
    due = reconcile(ClusterState(), table, here, Reported())
    assert due == ([StartSlot("00", None)] if settled else [])
