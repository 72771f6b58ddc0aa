"""Talks to falcon: builds the application from the route table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from falcon.asgi import App

from gateway.dialects.registry import APIS
from gateway.http.openapi import Route
from gateway.http.resources import models, pages
from gateway.http.routes.api_rows import rows_of
from gateway.http.routes.table import ROUTES
from gateway.service import ServiceHandle


def routed() -> dict[tuple[str, str], Route]:
    """Return each route by (method, path), with the path as the router writes it.

    Two routes of one path have the same scope; the first is returned. A HEAD request uses the route
    of GET.
    """
    rows: dict[tuple[str, str], Route] = {}
    for route in ROUTES:
        rows.setdefault((route.method, route.path), route)
    for api in APIS:
        if api.also_under:
            for row in rows_of(api):
                rows[row.method, f"{api.also_under}{row.path}"] = row
            rows["GET", api.also_under] = replace(rows["GET", "/"], path=api.also_under)
    return rows


def add_routes(app: App[Any, Any], handle: ServiceHandle) -> None:
    """Create the resource of each path once, and add it under every path that the API has."""
    # if two rows have one path, the later row's resource answers both
    makers = {route.path: route.resource for route in ROUTES if not route.marked_by}
    made = {path: make(handle) for path, make in makers.items() if make is not None}
    for route in ROUTES:
        if route.marked_by and route.resource is not None:
            marked = route.resource(handle)
            made[route.path] = models.ByHeader(route.marked_by, marked, made[route.path])
    for api in APIS:
        if api.also_under:
            paths = [endpoint.path for endpoint in api.endpoints]
            made |= {f"{api.also_under}{path}": made[path] for path in paths}
            made[api.also_under] = pages.Root(handle)
    for path, resource in made.items():
        app.add_route(path, resource)
