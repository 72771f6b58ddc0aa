"""Talks to a hub of models: gets a model from the internet to this node's disk, when asked to.

`pulls` is the worker's side; the bytes pass through a process of their own (`__main__`), so that
neither the worker's loop nor its memory know of them. `listing`, `files`, `patience` and `claims`
decide, and are pure.
"""

from worker.pulling.order import PullSettings, hub_of
from worker.pulling.pulls import Pulls
from worker.pulling.searching import Searches

__all__ = ["PullSettings", "Pulls", "Searches", "hub_of"]
