"""Talks to a hub: searches the hub's models for a client.

`searches` runs in the worker. A separate process (`__main__`) contacts the hub, as for pulls.
`found` filters the hub's list and is pure.
"""

from worker.pulling.searching.found import HubModel, found_models
from worker.pulling.searching.searches import Searches

__all__ = ["HubModel", "Searches", "found_models"]
