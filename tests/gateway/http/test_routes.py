"""The reference tells of every route, and of none that is not there."""

from __future__ import annotations

from typing import Any

import falcon.inspect
from falcon.asgi import App

from bus.process.endpoints import Endpoints
from bus.wire.ids import NodeId
from gateway.http.openapi import document
from gateway.http.resources.pages import docs, openapi
from gateway.http.routes import ROUTES, add_routes
from gateway.service import ServiceHandle
from gateway.view.options import Options


def answered() -> set[tuple[str, str]]:
    options = Options(
        node=NodeId("n1"), node_name="n", endpoints=Endpoints("/tmp/x"), metrics_folder="/tmp/x"
    )
    app: App[Any, Any] = App()
    add_routes(app, ServiceHandle(options))
    return {
        (method.method, route.path)
        for route in falcon.inspect.inspect_routes(app)
        for method in route.methods
        if not method.internal
    }


def test_every_route_has_its_line_and_every_line_its_route() -> None:
    told = {(route.method, route.path) for route in ROUTES}
    also = {("GET", "/ollama")}
    twice = {(m, f"/ollama{p}") for m, p in told if p.startswith("/api/") and "/v1/" not in p}
    assert answered() == told | also | twice


def test_the_reference_is_made_of_the_same_table() -> None:
    paths = document(ROUTES, title="shoal", version="1")["paths"]
    assert "post" in paths["/v1/chat/completions"]
    assert openapi(ROUTES, "1") is not None
    page = docs(ROUTES, "1").decode()
    assert all(route.path.replace("<", "&lt;") in page for route in ROUTES)
    assert "http://" not in page and "https://" not in page, "nothing is downloaded from elsewhere"
