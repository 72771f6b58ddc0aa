"""Talks to the event loop and the disk: streams that a client may read again after it disconnected.
Another HTTP process of the node continues them if their process dies (decision 0101).

The numbered events of a stream are in memory (`EventBuffer`), where the client may read them again.
A file has the runners' messages, from which another process can render the same events.
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
