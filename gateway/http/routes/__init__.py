"""Talks to falcon: what answers each method of each path, and the application made of that."""

from gateway.http.routes.application import add_routes, routed
from gateway.http.routes.table import ROUTES

__all__ = ["ROUTES", "add_routes", "routed"]
