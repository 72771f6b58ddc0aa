"""Talks to browsers: serves the dashboard page from `static/`, with its security policy.

The page is an ordinary client and gets all data over the public API. The files of the page contain
no secrets, so no API key is needed to read them.
"""

from gateway.http.page.files import Dashboard, DashboardFile, Front

__all__ = ["Dashboard", "DashboardFile", "Front"]
