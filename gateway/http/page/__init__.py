"""Talks to browsers: serves the dashboard page from `static/`, with its security policy.

The page is an ordinary client: all its data comes over the public API. Its files contain no secrets
and need no key.
"""

from gateway.http.page.files import Dashboard, DashboardFile, Front

__all__ = ["Dashboard", "DashboardFile", "Front"]
