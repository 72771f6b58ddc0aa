"""Talks to the disk: makes runners preload the chosen BLAS library. Each runner reads its variables
when it starts.

`shoal up` writes them, and so does a node that measures again while it is idle.
"""

from __future__ import annotations

from collections.abc import Mapping

from bus.process.zygote import OVERLAY, OVERLAY_FILE, write_variables
from conf.blas.measure import Outcome
from conf.settings import Settings


def publish_blas(settings: Settings, outcome: Outcome) -> Mapping[str, str]:
    """Write the file with the environment variables of runners. Return the variables for
    supervisord's configuration, which runners use if that file is lost. If no library is chosen,
    there is no file and no variable."""
    file = settings.paths.state / OVERLAY_FILE
    if outcome.choice is None:
        file.unlink(missing_ok=True)
        return {}
    preloads = str(settings.paths.preloads)
    files = [
        name for name in outcome.variables["LD_PRELOAD"].split(":") if name.startswith(preloads)
    ]
    write_variables(file, outcome.variables, repeats=outcome.repeats, files=files)
    return {**outcome.variables, OVERLAY: str(file)}
