"""Talks to falcon: the table of routes, and the application that is built from it."""

from gateway.http.routes.access import KEYLESS, NODES, RIGHTS, check_calls, topics, with_a_key
from gateway.http.routes.application import add_routes, routed
from gateway.http.routes.table import ROUTES

__all__ = [
    "KEYLESS",
    "NODES",
    "RIGHTS",
    "ROUTES",
    "add_routes",
    "check_calls",
    "routed",
    "topics",
    "with_a_key",
]
