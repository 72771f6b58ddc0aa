"""Talks to supervisord: starts the services on Linux from one process, the zygote. The zygote
imports the shared code once; each service is then forked from it (decision 0068).
"""

from bus.process.zygote.loaded import LoadedCode, load

__all__ = ["LoadedCode", "load"]
