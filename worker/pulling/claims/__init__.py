"""Decides which node downloads a model from the hub, if several nodes want the same model.

Pure. `claims` holds the claims of this node, and `others` the pulls of other nodes.
"""

from worker.pulling.claims.claims import SETTLE_S, Claims, PullStanding
from worker.pulling.claims.others import OFFERED_S, SILENT_S, STALLED_S

__all__ = ["OFFERED_S", "SETTLE_S", "SILENT_S", "STALLED_S", "Claims", "PullStanding"]
