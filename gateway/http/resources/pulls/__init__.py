"""Talks to clients who have a node pull a model from a hub."""

from gateway.http.resources.pulls.pull import ModelToFetch, PullBody, PullEvent, PullModel

__all__ = ["ModelToFetch", "PullBody", "PullEvent", "PullModel"]
