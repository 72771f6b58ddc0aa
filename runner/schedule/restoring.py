"""Take prefixes from disk into a step, if reading them is cheaper than computing them.

Pure. `DiskIndex` knows the files; this module knows the memory and the costs.
"""

from __future__ import annotations

from bus.models.kv import TokenChain
from bus.wire.messages.requests import PromptCost
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


def prompt_cost(table: RowTable, prompt: TokenChain, how: str) -> PromptCost:
    """Return how long this runner would need to compute a prompt, and how much KV of the prompt it
    already has. `how` is a hash of this runner's way of computing KV, which other nodes compare
    with their own; empty if it has no files of KV."""
    match, disk, costs = table.prefixes.find(prompt), table.disk, table.costs
    saved = 0 if disk is None else disk.saved(prompt)
    have = max(saved, 0 if match is None else match.length)
    missing = max(prompt.length - have, 0)
    is_measured = costs.prefill.is_measured
    seconds = costs.prefill_s(GroupSize(missing, (have + prompt.length) // 2))
    left = [max(row.length - row.computed, 0) for row in table.rows.values() if not row.made]
    moves = (
        disk is not None
        and disk.seeks.is_on
        and prompt.length >= disk.least_tokens
        and will_keep(table, prompt.length)
    )
    return PromptCost(
        tokens=prompt.length,
        missing=missing,
        saved=saved,
        prefill_s=seconds if is_measured else 0.0,
        busy_s=costs.prefill_s(*(GroupSize(tokens, tokens // 2) for tokens in left if tokens)),
        kv_bytes=table.cost_bytes([prompt.length]),
        how=how if moves else "",
    )


def waits_for_disk(table: RowTable, open_plan: OpenPlan, row: Row, have: int) -> bool:
    """Return whether the row waits, because more of its prefix than the `have` tokens in memory is
    being read from disk, and that takes less time than computing it."""
    if table.disk is None or table.pressure.over or table.prefixes.limit_bytes <= 0:
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
