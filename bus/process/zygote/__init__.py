"""Talks to supervisord: the zygote of the services on Linux. It imports the shared code once and
forks the services (decision 0068)."""

from bus.process.zygote.loaded import LoadedCode, load

__all__ = ["LoadedCode", "load"]
