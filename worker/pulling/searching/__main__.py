"""Talks to the worker that started it, and to a hub: runs one search, as `python -P -m
worker.pulling.searching`.

Its input line is the question, in JSON (`AskSearch`); its output line is the answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from bus.process.logs import Log, log_strays
from bus.wire.messages.gateways import AskSearch, SearchFound, SearchRefused
from worker.models.files import installed_families
from worker.pulling.hub import Hub
from worker.pulling.listing import PullFailed
from worker.pulling.searching.found import GGUF, MLX, SAFETENSORS, HubModel, found_models

MORE = 2
"""The hub is asked for this many models per wanted model, because some of them cannot run on this
node.
"""


def search(question: AskSearch) -> SearchFound | SearchRefused:
    """Return models of the hub in this process's environment: first those made for MLX, then, if
    these are too few, others with safetensors, then those in GGUF."""
    hub, listed = Hub(), list[HubModel]()
    try:
        for tag in (MLX, SAFETENSORS, GGUF):
            if len(listed) < question.limit * MORE:
                listed += hub.search(question.words, question.author, tag, question.limit * MORE)
    except PullFailed as failure:
        return SearchRefused(
            reason=failure.reason, message=failure.message, retry_after_s=failure.retry_after_s
        )
    families = installed_families()

    def runs(config: Mapping[str, Any]) -> bool:
        """Return whether the installed mlx-lm supports the family, or the family is not stated."""
        return families is None or families.unfit(config) is None

    models, left_out = found_models(listed, runs, question.limit)
    return SearchFound(hub=hub.address, models=models, left_out=left_out)


def program() -> NoReturn:
    """Answer the question, and end the process with all its threads: a thread of a library may
    still wait for the hub."""
    log_strays(Log(node="", process="worker"))
    question = AskSearch.model_validate_json(sys.stdin.buffer.readline())
    sys.stdout.write(search(question).model_dump_json() + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    program()
