"""The state of the cluster as one HTTP process knows it: node cards, readings, counters, metrics,
and the streams of snapshots and events that clients watch. It also has the options of the gateway.

This is the lowest package of the gateway. It knows the bus and this machine, and nothing of
requests, records or other packages of the gateway. Nothing in it changes a node. Each name in
`__all__` is a module or a package, which is imported when it is first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.view import (
        counters,
        earlier_counts,
        fleet,
        metrics,
        options,
        own_peers,
        readings,
        watch,
        watching,
    )

__all__ = [
    "counters",
    "earlier_counts",
    "fleet",
    "metrics",
    "options",
    "own_peers",
    "readings",
    "watch",
    "watching",
]
