"""Talks to the disk and the bus: reads models here and compares them with their hashes, in a
thread, while a client waits. Changes nothing."""

from worker.verifying.checks import Verdict, total_bytes, verify
from worker.verifying.verifications import Verifications

__all__ = ["Verdict", "Verifications", "total_bytes", "verify"]
