"""Which of several nodes that want a model at once asks the hub for it.

Pure: `claims` is what one node claims and waits for, `others` what other nodes' pulls say.
"""

from worker.pulling.claims.claims import SETTLE_S, Claims, PullStanding
from worker.pulling.claims.others import OFFERED_S, SILENT_S, STALLED_S

__all__ = ["OFFERED_S", "SETTLE_S", "SILENT_S", "STALLED_S", "Claims", "PullStanding"]
