"""Talks to a model hub: downloads a model to this node's disk on request.

`pulls` is the worker's side. The bytes pass through a process of their own (`__main__`), so that
they use neither the worker's loop nor its memory. `listing`, `files`, `patience` and `claims`
decide, and are pure.
"""

from worker.pulling.order import PullSettings, hub_of
from worker.pulling.pulls import Pulls
from worker.pulling.searching import Searches

__all__ = ["PullSettings", "Pulls", "Searches", "hub_of"]
