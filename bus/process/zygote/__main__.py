"""Talks to supervisord: starts it (`python -P -m bus.process.zygote -c FILE`) and imports the
services' shared code before it forks them.

supervisord reads its file, takes its flags and answers supervisorctl as always.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# (supervisor carries no type information)
from __future__ import annotations

import os
import sys

import setproctitle
from supervisor import supervisord

from bus.process.logs import Log
from bus.process.zygote.forking import ForkingOptions
from bus.process.zygote.loaded import load

SERVICES = ("bus", "master", "worker", "telemetry", "gateway")
"""The packages to load and fork. The gateway is loaded without its HTTP application, because
runners can start while the gateway loads that itself."""
LIBRARIES = ("pydantic_settings",)
"""Services import this library when they read settings from variables: 35 ms and 6 MiB for each, if
supervisord had not imported it."""


def main() -> None:
    """Run supervisord until it is stopped."""
    ForkingOptions.loaded = loaded = load(SERVICES, libraries=LIBRARIES)
    if loaded.trouble:
        log = Log(node="", process="supervisord")
        log.warning("services are started by exec, not forked from supervisord", why=loaded.trouble)
    setattr(supervisord, "ServerOptions", ForkingOptions)  # noqa: B010 - what its `main` makes
    # gunicorn's import has already joined the words of the command
    setproctitle.setproctitle(" ".join(["supervisord", *sys.argv[1:]]))
    supervisord.main(sys.argv[1:])
    # Freeing all imported code takes a second, and `shoal down` waits for it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
