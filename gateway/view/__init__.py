"""The state of the cluster as one HTTP process knows it: options, readings, counts, metrics, and
the streams of snapshots and events that clients watch.

This room is lowest in the gateway: it knows the bus and this machine, and no request, record or
other room of the gateway. Nothing in it changes a node. The door names modules, which load alone,
and the room `watch`, which has its own door.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.view import (
        counters,
        earlier_counts,
        metrics,
        options,
        own_peers,
        readings,
        watch,
    )

__all__ = ["counters", "earlier_counts", "metrics", "options", "own_peers", "readings", "watch"]
