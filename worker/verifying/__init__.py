"""Talks to the disk and the bus: models that lie here are read and held against their hashes, in a
thread, for as long as a client waits for it. Nothing is changed by it.
"""

from worker.verifying.checks import Verdict, total_bytes, verify
from worker.verifying.verifications import Verifications

__all__ = ["Verdict", "Verifications", "total_bytes", "verify"]
