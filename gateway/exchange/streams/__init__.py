"""Talks to the event loop and the disk: streams that outlive their client's connection, and the
HTTP process that serves them (decision 0101).

A stream has numbered events in memory (`EventBuffer`), which its client may read again. A file has
the runners' messages from which another process of the node renders the same events again.
"""

from gateway.exchange.streams.event_buffer import EventBuffer, EventsGone
from gateway.exchange.streams.lasting_stream import LastingStream
from gateway.exchange.streams.open_stream import TAKEN_OVER_COMMENT, OpenStream, StreamReader
from gateway.exchange.streams.open_streams import OpenStreams
from gateway.exchange.streams.stream_journal import ClaimedStream, StreamFolder, StreamJournal
from gateway.exchange.streams.stream_records import StreamHead
from gateway.exchange.streams.taking_over import begin_with

__all__ = [
    "TAKEN_OVER_COMMENT",
    "ClaimedStream",
    "EventBuffer",
    "EventsGone",
    "LastingStream",
    "OpenStream",
    "OpenStreams",
    "StreamFolder",
    "StreamHead",
    "StreamJournal",
    "StreamReader",
    "begin_with",
]
