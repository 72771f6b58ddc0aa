"""Talks to clients about who is in memory: what waits for it and why, and what is pinned."""

from gateway.http.resources.pool.pool import PinBody, PinResource, PoolResource

__all__ = ["PinBody", "PinResource", "PoolResource"]
