"""Talks to the disk and the bus: compares the files of this node's models with their hashes, in a
separate thread. A verification runs while a client waits for it, and changes nothing.
"""

from worker.verifying.checks import Verdict, total_bytes, verify
from worker.verifying.verifications import Verifications

__all__ = ["Verdict", "Verifications", "total_bytes", "verify"]
