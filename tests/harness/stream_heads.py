"""The request of a stream that may be read again, as its file has it."""

from __future__ import annotations

from bus.process.logs import Log
from bus.wire.ids import NodeId, RequestId
from gateway.exchange.streams import StreamHead

RID, OWNER = RequestId("req-n1-h0-b-1"), "key-1"
LOG = Log(node=NodeId("n1"), process="gateway", level="critical")


def head(owner: str = OWNER, wait_s: float = 30.0) -> StreamHead:
    return StreamHead(
        request=RID,
        path="/v1/chat/completions",
        body=b"{}",
        created_at_s=1.0,
        fingerprint="shoal-1",
        owner=owner,
        wait_s=wait_s,
        key=None,
        sharer=("", "", "1.2.3.4", "1.2.3.4:5"),
    )
