"""Talks to the system where it has to: who asks, as a request's scope has it.

Where no key is asked for, everybody on this machine may come in. The node's owner is then shown by
the node's socket, which is of mode 0600, by a key (a client gives none that it need not), or by the
user whose process holds the other end of the connection. That last counts only for what the process
says itself: not for what a proxy passed on, nor for a web page of another origin in its browser.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import MutableMapping
from typing import Any, cast
from urllib.parse import urlsplit

from falcon.asgi import Request

from bus.wire.shares import Sharer
from gateway.cluster.options import Options
from gateway.cluster.own_peers import End, user_of_end
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.auth import STRANGER, Caller, client_address
from gateway.http.connection import CONNECTION

CALLER = "shoal.caller"
"""Where a scope has who asks."""
_USER = "user"
_PASSED_ON = ("forwarded", "via", "x-forwarded-for", "x-real-ip")
"""Headers that proxies add."""
_OWN_SITE = (None, "none", "same-origin")


def caller_of(req: Request) -> Caller | None:
    """Return who asks; None for one who has no key where one is needed."""
    return req.scope.get(CALLER)


def key_id(req: Request) -> str | None:
    """Return the id of the API key that a request carries, which it keeps when it is rotated; None
    for none, and for the only key of a node's settings."""
    caller = caller_of(req)
    return None if caller is None else caller.key_id


def sharer_of(req: Request, options: Options, client_id: str | None) -> Sharer:
    """Return who asks, for an even share: API key, client id, address, connection."""
    host, port = req.scope.get("client") or ("" if options.has_port else "socket", 0)
    forwarded = req.get_header("x-forwarded-for")
    address = client_address(str(host), forwarded, options.trusted_proxies)
    return (key_id(req) or "", client_id or "", address, f"{host}:{port}")


async def is_owner(req: Request, options: Options) -> bool:
    """Return whether a request that may come in is shown to be of the node's owner, or of one whose
    key opens as much."""
    caller = caller_of(req)
    if caller != STRANGER:
        return caller is not None and caller.scope == "admin"
    if not options.has_port:
        return True  # nobody else reaches the socket
    is_itself = all(req.get_header(name) is None for name in _PASSED_ON) and _is_own_page(req)
    return is_itself and await _user_of(req) in (os.getuid(), 0)


async def check_owner(req: Request, options: Options, what: str, also: str = "") -> None:
    """Raise HttpFaultRaised (403) for one that is not shown to be the node's owner. `what` is for
    the owner alone; `also` says what else would help."""
    if not await is_owner(req, options):
        text = (
            f"without an API key, {what} is only for the user who runs this node: use that user's "
            "`shoal`, or send an API key with the scope 'admin' or the content of that user's file "
            "`http-token` as Authorization: Bearer <key>"
        )
        raise HttpFaultRaised(HttpFault(403, "owner_only", text + also))


async def owner_of_kept(req: Request, options: Options) -> str:
    """Return whose kept answers, conversations and jobs a request may find: the id of its API key;
    empty for the node's owner, and for the one key of its settings; of another user of this machine
    without a key those of that user."""
    if caller_of(req) != STRANGER or await is_owner(req, options):
        return key_id(req) or ""
    user = await _user_of(req)
    return f"local-{options.node}-{'unknown' if user is None else user}"


def _is_own_page(req: Request) -> bool:
    """Return whether a request is no web page's, or one of this very server's: to a browser all
    ports of this machine are one site, also those of its other users."""
    origin = req.get_header("origin")
    if origin is not None and urlsplit(origin).netloc != req.get_header("host"):
        return False
    return req.get_header("sec-fetch-site") in _OWN_SITE


async def _user_of(req: Request) -> int | None:
    """Return the user at the other end, found once for each connection."""
    noted = cast(MutableMapping[str, Any], req.scope.setdefault(CONNECTION, {}))
    if _USER not in noted:
        client, server = _end(req, "client"), _end(req, "server")
        noted[_USER] = await asyncio.to_thread(user_of_end, client, server)
    return noted[_USER]


def _end(req: Request, which: str) -> End:
    host, port = req.scope.get(which) or ("", 0)
    return str(host), int(port)
