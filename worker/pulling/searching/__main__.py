"""Talks to the worker that started it, and to a hub: one search, as
`python -P -m worker.pulling.searching`.

The line of its input is the question, in JSON (`AskSearch`); that of its output is the answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from bus.process.logs import Log, log_strays
from bus.wire.messages.gateways import AskSearch, SearchFound, SearchRefused
from worker.models.files import installed_families
from worker.pulling.hub import Hub
from worker.pulling.listing import PullFailed
from worker.pulling.searching.found import MLX, SAFETENSORS, found_models

MORE = 2
"""So many times the models that are wanted are listed: not all of them run here."""


def search(asked: AskSearch) -> SearchFound | SearchRefused:
    """Return what the hub of this process's environment has: first what was made for MLX, and where
    that is too little what else has safetensors."""
    hub = Hub()
    try:
        listed = hub.search(asked.words, asked.author, MLX, asked.limit * MORE)
        if len(listed) < asked.limit * MORE:
            listed += hub.search(asked.words, asked.author, SAFETENSORS, asked.limit * MORE)
    except PullFailed as failure:
        return SearchRefused(
            reason=failure.reason, message=failure.message, retry_after_s=failure.retry_after_s
        )
    families = installed_families()

    def runs(config: Mapping[str, Any]) -> bool:
        """Return whether the mlx-lm that is installed here knows the family, or it is not said."""
        return families is None or families.unfit(config) is None

    found, left_out = found_models(listed, runs, asked.limit)
    return SearchFound(hub=hub.address, models=found, left_out=left_out)


def main() -> int:
    """Answer the question."""
    log_strays(Log(node="", process="worker"))
    asked = AskSearch.model_validate_json(sys.stdin.buffer.readline())
    sys.stdout.write(search(asked).model_dump_json() + "\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a thread of a library may still wait for the hub
