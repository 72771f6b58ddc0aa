"""What becomes of a command about a lease, and which leases are asked back for what is more urgent.

Pure. A lease waits for memory as a model does (`master.pool`), and is placed by the same choice.
"""

from master.decisions.leasing.leases import (
    asked_back,
    decide_lease,
    not_wanted_back,
    take_lease,
)

__all__ = ["asked_back", "decide_lease", "not_wanted_back", "take_lease"]
