"""Talks to supervisord: starts the services on Linux from one process, the zygote. The zygote
imports the shared code once; each service is then forked from it (decision 0068).
"""

from bus.process.zygote.loaded import LoadedCode, load
from bus.process.zygote.overlay import (
    OVERLAY,
    OVERLAY_FILE,
    overlaid,
    variables_in,
    write_variables,
)

__all__ = [
    "OVERLAY",
    "OVERLAY_FILE",
    "LoadedCode",
    "load",
    "overlaid",
    "variables_in",
    "write_variables",
]
