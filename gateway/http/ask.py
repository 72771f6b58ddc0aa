"""Talks to a node's other services: one question, one answer, or the wait that ran out.

Each question has a DEALER of its own, closed when the answer is there: questions are rare, and so
no answer can ever be taken for another's.
"""

from __future__ import annotations

import asyncio

from bus.client import Speaker
from bus.links.reactor import Reactor
from bus.links.transport import Link
from bus.wire.codec import Envelope, decode, encode
from bus.wire.errors import Unavailable
from bus.wire.messages.wire import Message


async def ask(
    speaker: Speaker, reactor: Reactor, address: str, message: Message, deadline_s: float
) -> Message:
    """Return the answer to `message` from the ROUTER at `address`; in the loop's thread alone.

    Raises Unavailable after `deadline_s`, BadMessage when the answer is not one of ours.
    """
    answer: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()

    def answered(frames: list[bytes]) -> None:
        """Give the waiting its answer, if it still waits."""
        if not answer.done():
            answer.set_result(frames)

    link = Link("dealer")
    try:
        link.connect(address)
        reactor.watch(link, answered)
        link.send(encode(Envelope(speaker.node, speaker.process, speaker.boot, 0, message)))
        frames = await asyncio.wait_for(answer, deadline_s)
    except TimeoutError as error:
        kind = type(message).__name__
        where = address.rsplit("/", 1)[-1]
        text = f"no answer to {kind} at {where} within {deadline_s:.0f} s"
        raise Unavailable(text) from error
    finally:
        reactor.unwatch(link)
        link.close()
    return decode(frames[-1]).message
