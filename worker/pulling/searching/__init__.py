"""Talks to a hub: which models it has, by words, when a client asks for them.

`searches` is the worker's side; a hub is asked by a process of its own (`__main__`), as pulls are.
`found` judges what a hub lists, and is pure.
"""

from worker.pulling.searching.found import HubModel, found_models
from worker.pulling.searching.searches import Searches

__all__ = ["HubModel", "Searches", "found_models"]
