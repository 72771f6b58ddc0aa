"""Commands about leases, and which leases to ask back for a more urgent claim.

Pure. A lease waits for memory like a model (`master.pool`) and is placed by the same rules.
"""

from master.decisions.leasing.leases import (
    asked_back,
    decide_lease,
    not_wanted_back,
    take_lease,
)

__all__ = ["asked_back", "decide_lease", "not_wanted_back", "take_lease"]
