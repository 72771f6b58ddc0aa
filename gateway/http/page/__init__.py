"""Talks to browsers: the page, its files as they lie in `static/`, and by what rules it may act.

The page is a client as any other: what it shows comes over the API that all have. Its files hold no
secret and are given without a key.
"""

from gateway.http.page.files import Dashboard, DashboardFile, Front

__all__ = ["Dashboard", "DashboardFile", "Front"]
