"""Talks to the disk and the bus: deletes models that shoal fetched, if they take too much space and
can be fetched again.

Pure modules decide which models are deleted. A node deletes a complete copy only after another node
has promised to keep its copy.
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
