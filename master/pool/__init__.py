"""Decides which models are in memory: claims on memory, free bytes, the choice of victims, minimum
residency, plans, and the reasons for waits.

Pure: time arrives as `now`. The priority of an instance is derived from the claims that exist now,
and never stored. A waiting model has one plan. No other plan can reserve the bytes of that plan,
and no runner is killed for a plan. This package knows placement, but no commands, and not the
position of an event in the log.
"""

from master.pool.choice import (
    ROOM_RETRY_S,
    Hopeless,
    PoolChoice,
    Victim,
    choose,
    choose_room,
    victim,
)
from master.pool.claims import URGENT, Claim, aged, pinned_by
from master.pool.leases import LeaseNotes, askable
from master.pool.ledger import Promise, holds_by_sum, reserve
from master.pool.plans import PlanBook, PoolPlan, Tenure
from master.pool.replicas import LoadMeters, ModelLoad, due, loads_of, over, replicas_in
from master.pool.settings import PoolSettings
from master.pool.turns import Copy, CopyUse, Yielding, is_in_use, yielding
from master.pool.waits import pool_reading

__all__ = [
    "ROOM_RETRY_S",
    "URGENT",
    "Claim",
    "Copy",
    "CopyUse",
    "Hopeless",
    "LeaseNotes",
    "LoadMeters",
    "ModelLoad",
    "PlanBook",
    "PoolChoice",
    "PoolPlan",
    "PoolSettings",
    "Promise",
    "Tenure",
    "Victim",
    "Yielding",
    "aged",
    "askable",
    "choose",
    "choose_room",
    "due",
    "holds_by_sum",
    "is_in_use",
    "loads_of",
    "over",
    "pinned_by",
    "pool_reading",
    "replicas_in",
    "reserve",
    "victim",
    "yielding",
]  # fmt: skip
