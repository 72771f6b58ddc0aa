"""The requests and replies of calls between the gateways of two nodes.

Pure. A call is sent in the envelope messages `call_asked` and `call_answered`
(`bus/wire/messages/gateways.py`), packed as the map of its fields. A message here has no `kind`,
because the name of the call says which message the map contains (`bus/calls/table.py` lists the
calls). A text can have any length, because clients choose some of the texts; only the whole request
is limited. Rows of the records file and documents of the HTTP API are sent as bytes, as they are
stored.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bus.wire.calls import answers, conversations, jobs, models, nodes, processes, traces

__all__ = ["answers", "conversations", "jobs", "models", "nodes", "processes", "traces"]
