"""Talks to the disk and the bus: what shoal fetched itself is let go where it takes too much room
and can be had again. What goes is decided by pure modules; no node deletes a whole copy before
another one has granted it, which keeps its own.
"""

from worker.eviction.choice import fetched_bytes, plan
from worker.eviction.evictions import Evictions
from worker.eviction.folders import NotLetGo, added_to, is_whole, put_away
from worker.eviction.grants import Granted, Grants, NotGranted
from worker.eviction.holdings import Holding, Surroundings, holdings_of
from worker.eviction.known import Near, StoreSettings

__all__ = [
    "Evictions",
    "Granted",
    "Grants",
    "Holding",
    "Near",
    "NotGranted",
    "NotLetGo",
    "StoreSettings",
    "Surroundings",
    "added_to",
    "fetched_bytes",
    "holdings_of",
    "is_whole",
    "plan",
    "put_away",
]
