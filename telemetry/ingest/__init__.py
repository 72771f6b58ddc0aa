"""Talks to a collector: lines of this node's logs, sent as they are written, by a thread of its
own.

The log files are the buffer: no process waits for a line to be sent, and none is kept in memory.
"""

from telemetry.ingest.sender import ANSWER_S, IngestTiming, LineSender

__all__ = ["ANSWER_S", "IngestTiming", "LineSender"]
