"""Talks to falcon: what answers each method of each path, and the application made of that."""

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
