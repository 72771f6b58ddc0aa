"""Talks to a hub: searches its models for a client.

`searches` is the worker's side; a process of its own (`__main__`) contacts the hub, as for pulls.
`found` filters a hub's list, and is pure.
"""

from worker.pulling.searching.found import HubModel, found_models
from worker.pulling.searching.searches import Searches

__all__ = ["HubModel", "Searches", "found_models"]
