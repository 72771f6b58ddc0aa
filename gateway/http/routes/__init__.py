"""Talks to falcon: the table of routes, and the application that is built from it."""

from gateway.http.routes.access import CALLS, KEYLESS, NODES, check_verbs, topics, verbs, with_a_key
from gateway.http.routes.application import add_routes, routed
from gateway.http.routes.table import ROUTES

__all__ = [
    "CALLS",
    "KEYLESS",
    "NODES",
    "ROUTES",
    "add_routes",
    "check_verbs",
    "routed",
    "topics",
    "verbs",
    "with_a_key",
]
