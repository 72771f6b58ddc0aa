"""Take prefixes from disk into a step, if reading them is cheaper than computing them.

Pure. `DiskIndex` knows the files; this module knows the memory and the costs.
"""

from __future__ import annotations

from runner.engine import PrefixRestore
from runner.schedule.costs import GroupSize
from runner.schedule.prefixes import PrefixMatch
from runner.schedule.rows import Row
from runner.schedule.table import OpenPlan, RowTable


def will_keep(table: RowTable, length: int) -> bool:
    """Return whether a prefix of this length fits into memory beside the live rows."""
    return table.cost_bytes([length]) <= min(
        table.prefixes.limit_bytes, table.kv_bytes - table.live_bytes()
    )


def waits_for_disk(table: RowTable, open_plan: OpenPlan, row: Row, have: int) -> bool:
    """Return whether the row waits, because more of its prefix than the `have` tokens in memory is
    being read from disk, and that takes less time than computing it."""
    if table.disk is None or table.pressure.is_on or table.prefixes.limit_bytes <= 0:
        return False

    def prefill_s(length: int) -> float:
        """Return the expected seconds of computing the tokens from `have` to `length`."""
        if length <= have or not will_keep(table, length):
            return 0.0
        return table.costs.prefill_s(GroupSize(length - have, (length + have) // 2))

    adapter = row.prepared.request.adapter or ""
    return table.disk.waits(row.chain(), have, prefill_s, open_plan.now, adapter)


def restore(table: RowTable, open_plan: OpenPlan, row: Row, have: int) -> PrefixMatch | None:
    """Plan to keep a prefix that was read from disk, for a row that was just admitted; return it.
    None if there is none with more than `have` tokens, or no memory for it."""
    if table.disk is None or (ready := table.disk.ready(row.chain(), have)) is None:
        return None
    decision = table.prefixes.keep(
        row.chain(),
        ready.length,
        room_bytes=table.kv_bytes - table.live_bytes(),
        hit_now=open_plan.needed,
    )
    if decision is None:
        return None
    table.disk.use(ready)
    open_plan.evict.extend(decision.evict)
    open_plan.restore.append(PrefixRestore(decision.entry, ready.run.name, ready.length))
    return PrefixMatch(decision.entry, ready.length)
