"""Talks to supervisord: the zygote of the services on Linux. The zygote imports the shared code
once; each service is then forked from it (decision 0068).
"""

from bus.process.zygote.loaded import LoadedCode, load

__all__ = ["LoadedCode", "load"]
