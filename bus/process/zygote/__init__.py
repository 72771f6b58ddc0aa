"""Talks to supervisord, the zygote of the services on Linux: it imports once what they share, and
forks them (decision 0068)."""

from bus.process.zygote.loaded import LoadedCode, load

__all__ = ["LoadedCode", "load"]
