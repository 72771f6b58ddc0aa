"""Talks to the other services of this node: sends one message and waits for its answer.

Each message uses a new DEALER socket, so that answers cannot be mixed up. The cost of a new socket
does not matter, because such messages are rare.
"""

from __future__ import annotations

import asyncio

from bus.client import BusClient
from bus.links.transport import Link
from bus.wire.codec import Envelope, decode, encode
from bus.wire.errors import Unavailable
from bus.wire.messages.wire import Message


async def ask_service(bus: BusClient, address: str, message: Message, deadline_s: float) -> Message:
    """Send `message` to the ROUTER socket at `address`, and return the answer. Must run in the
    thread of the event loop.

    Raises Unavailable if no answer arrives within `deadline_s`, and BadMessage if the answer cannot
    be decoded.
    """
    answer: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()

    def take(frames: list[bytes]) -> None:
        if not answer.done():
            answer.set_result(frames)

    sender, link = bus.speaker, Link("dealer")
    try:
        link.connect(address)
        bus.reactor.watch(link, take)
        link.send(encode(Envelope(sender.node, sender.process, sender.boot, 0, message)))
        frames = await asyncio.wait_for(answer, deadline_s)
    except TimeoutError as error:
        kind = type(message).__name__
        where = address.rsplit("/", 1)[-1]
        text = f"no answer to {kind} at {where} within {deadline_s:.0f} s"
        raise Unavailable(text) from error
    finally:
        bus.reactor.unwatch(link)
        link.close()
    return decode(frames[-1]).message
