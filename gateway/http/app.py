"""Talks to no client yet: puts the ASGI application of one HTTP process together.

Server-neutral: any ASGI server with lifespan may run what `build_app` returns. Nothing of the
bus is made here; that happens in lifespan startup, after the fork.
"""

from __future__ import annotations

from typing import Any, cast

from falcon.asgi import App

from gateway.cluster.options import Options
from gateway.http.middleware import AccessControl, Asgi, ErrorHandlers, ReceiveTap
from gateway.http.routes import add_routes
from gateway.service import ServiceHandle


def build_app(options: Options) -> ReceiveTap:
    """Return the application, from what the composition root has read."""
    handle = ServiceHandle(options)
    app: App[Any, Any] = App(middleware=[AccessControl(handle)])
    app.resp_options.xml_error_serialization = False
    app.req_options.strip_url_path_trailing_slash = True
    ErrorHandlers(handle).install(app)
    add_routes(app, handle)
    handle.application = tapped = ReceiveTap(cast(Asgi, app))
    return tapped
