"""Talks to clients about the tools that this node runs for them."""

from gateway.http.resources.tools.web import ExtractPage, OpenUrl, WebSearch

__all__ = ["ExtractPage", "OpenUrl", "WebSearch"]
