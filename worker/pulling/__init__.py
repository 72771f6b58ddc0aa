"""Talks to a model hub: downloads a model to this node's disk when a client requests it.

`active` runs in the worker. A separate process (`__main__`) transfers the bytes, so that they use
neither the worker's loop nor its memory. `listing`, `files`, `patience` and `claims` decide and are
pure.
"""

from worker.pulling.active import Pulls
from worker.pulling.order import PullSettings, hub_of
from worker.pulling.searching import Searches

__all__ = ["PullSettings", "Pulls", "Searches", "hub_of"]
