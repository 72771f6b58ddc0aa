"""Who is in memory: claims, the ledger, choice, turns, plans, and what each waits for.

Pure: time arrives as `now`. A copy's standing is derived from the claims that live, never stored.
A model that waits has one plan, whose bytes no other plan may promise away; nothing is killed for
it. Knows placement, no command and no event's place in the log.
"""

from master.pool.choice import Hopeless, PoolChoice, Victim, choose, victim
from master.pool.claims import URGENT, Claim, aged, pinned_by
from master.pool.ledger import Promise, reserve
from master.pool.plans import PlanBook, PoolPlan, Tenure
from master.pool.settings import PoolSettings
from master.pool.turns import Copy, CopyUse, Yielding, is_in_use, yielding
from master.pool.waits import pool_reading

__all__ = [
    "URGENT",
    "Claim",
    "Copy",
    "CopyUse",
    "Hopeless",
    "PlanBook",
    "PoolChoice",
    "PoolPlan",
    "PoolSettings",
    "Promise",
    "Tenure",
    "Victim",
    "Yielding",
    "aged",
    "choose",
    "is_in_use",
    "pinned_by",
    "pool_reading",
    "reserve",
    "victim",
    "yielding",
]  # fmt: skip
