"""Talks to the operating system: finds out who sent a request.

On a node without API keys, every user of this machine may send requests, but some routes are only
for the node's owner. A caller is the owner if the request came over the node's Unix socket (mode
0600) or has a key. The caller is also the owner if the process at the other end of the connection
runs as the owner's user or as root. That user is not checked for requests that a proxy forwards,
and not for requests of a web page of another origin.
"""

from __future__ import annotations

import asyncio
import os
from urllib.parse import urlsplit

from falcon.asgi import Request

from bus.wire.shares import Sharer
from gateway.access import STRANGER, Caller, client_address
from gateway.dialects.faults import HttpFault, HttpFaultRaised
from gateway.http.scope import scope_of
from gateway.view.options import Options
from gateway.view.own_peers import End, user_of_end

_USER = "user"
_PASSED_ON = ("forwarded", "via", "x-forwarded-for", "x-real-ip")
"""Headers that proxies add to the requests they forward."""
_OWN_SITE = (None, "none", "same-origin")


def caller_of(req: Request) -> Caller | None:
    """Return the caller; None if a key is required and the request has none."""
    return scope_of(req).caller


def key_id(req: Request) -> str | None:
    """Return the id of a request's API key; rotating a key does not change its id. None without a
    key. Also None for a key in the node's settings, if it is the only one there."""
    caller = scope_of(req).caller
    return None if caller is None else caller.key_id


def key_behind(req: Request) -> str:
    """Return the id of the cluster's API key for calls to other nodes; "" for the owner of this
    node, who has no key or a key in this node's settings."""
    caller = caller_of(req)
    return caller.key_id or "" if caller is not None and caller.of_cluster else ""


def sharer_of(req: Request, options: Options, client_id: str | None) -> Sharer:
    """Return the client for fair sharing as a path from coarse to fine: API key, client id,
    address, connection."""
    host, port = req.scope.get("client") or ("" if options.has_port else "socket", 0)
    forwarded = req.get_header("x-forwarded-for")
    address = client_address(str(host), forwarded, options.trusted_proxies)
    return (key_id(req) or "", client_id or "", address, f"{host}:{port}")


async def is_owner(req: Request, options: Options) -> bool:
    """Return whether a request that passed the access checks comes from the node's owner, or has a
    key of the scope `admin`."""
    caller = caller_of(req)
    if caller != STRANGER:
        return caller is not None and caller.scope == "admin"
    if not options.has_port:
        return True  # only the owner can open the socket
    is_itself = all(req.get_header(name) is None for name in _PASSED_ON) and _is_own_page(req)
    return is_itself and await _user_of(req) in (os.getuid(), 0)


async def check_owner(req: Request, options: Options, what: str, also: str = "") -> None:
    """Raise HttpFaultRaised (403) unless the caller is the node's owner. `what` is the action;
    `also` is a further hint for the message."""
    if not await is_owner(req, options):
        text = (
            f"without an API key, {what} is only for the user who runs this node: use that user's "
            "`shoal`, or send an API key with the scope 'admin' or the content of that user's file "
            "`http-token` as Authorization: Bearer <key>"
        )
        raise HttpFaultRaised(HttpFault(403, "owner_only", text + also))


async def owner_of_kept(req: Request, options: Options) -> str:
    """Return the owner id of the stored answers, conversations and jobs that a request may read.

    The owner id is the id of the API key. It is "" for the node's owner, and for a key in the
    node's settings if it is the only one there. Without a key, every other user of this machine has
    an owner id of their own.
    """
    if caller_of(req) != STRANGER or await is_owner(req, options):
        return key_id(req) or ""
    user = await _user_of(req)
    return f"local-{options.node}-{'unknown' if user is None else user}"


def _is_own_page(req: Request) -> bool:
    """Return whether a request comes from this server's dashboard page, or from no web page. The
    origin is compared with its port, because other users of this machine can serve pages on other
    ports."""
    origin = req.get_header("origin")
    if origin is not None and urlsplit(origin).netloc != req.get_header("host"):
        return False
    return req.get_header("sec-fetch-site") in _OWN_SITE


async def _user_of(req: Request) -> int | None:
    """Return the user id of the process at the other end of the connection; looked up once per
    connection."""
    noted = scope_of(req).noted
    if _USER not in noted:
        client, server = _end(req, "client"), _end(req, "server")
        noted[_USER] = await asyncio.to_thread(user_of_end, client, server)
    return noted[_USER]


def _end(req: Request, which: str) -> End:
    host, port = req.scope.get(which) or ("", 0)
    return str(host), int(port)
