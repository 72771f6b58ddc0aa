"""Talks to clients about the tools (such as a web search) that this node runs for them."""

from gateway.http.resources.tools.web import ExtractPage, OpenUrl, WebSearch

__all__ = ["ExtractPage", "OpenUrl", "WebSearch"]
