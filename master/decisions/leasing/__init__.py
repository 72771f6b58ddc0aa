"""Commands about leases, and the choice of leases whose memory the leader requests back for a more
urgent claim.

Pure. A lease waits for memory like a model (`master.pool`), and the same rules choose its node.
"""

from master.decisions.leasing.leases import (
    asked_back,
    decide_lease,
    not_wanted_back,
    take_lease,
)

__all__ = ["asked_back", "decide_lease", "not_wanted_back", "take_lease"]
