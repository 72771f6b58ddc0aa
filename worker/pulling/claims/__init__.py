"""Decide which of several nodes that want the same model downloads it from the hub.

Pure: `claims` is this node's side, `others` the pulls of other nodes.
"""

from worker.pulling.claims.claims import SETTLE_S, Claims, PullStanding
from worker.pulling.claims.others import OFFERED_S, SILENT_S, STALLED_S

__all__ = ["OFFERED_S", "SETTLE_S", "SILENT_S", "STALLED_S", "Claims", "PullStanding"]
