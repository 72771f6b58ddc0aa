"""How the leader answers commands and reacts to readings. Each decision is a list of events.

Pure: time arrives as `now`.
"""

from master.decisions.decide import Policy
from master.decisions.holder import Holder
from master.decisions.prune import SETTLE_GRACE_S

__all__ = ["SETTLE_GRACE_S", "Holder", "Policy"]
