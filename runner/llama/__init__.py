"""Serves a GGUF model with llama-server, a child process of the runner.

shoal renders the conversation, tokenises it and parses the output; llama-server computes. It takes
token ids and returns text, because it sends no id for a token that ends inside a character. The
table `bus.models.gguf.ABILITIES` lists the requests that are refused. The names below are loaded
when they are used, because `runner.llama.program` needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.llama.launch import Launch, launch_of
    from runner.llama.llama_loop import LlamaLoop
    from runner.llama.llama_responder import LlamaResponder
    from runner.llama.open_answer import SentWorks
    from runner.llama.wire import STALLED_S, STILL_S, LlamaClient, LlamaTrouble, differing

__all__ = [
    "STALLED_S",
    "STILL_S",
    "Launch",
    "LlamaClient",
    "LlamaLoop",
    "LlamaResponder",
    "LlamaTrouble",
    "SentWorks",
    "differing",
    "launch_of",
]

_HOMES = {
    "STALLED_S": "runner.llama.wire",
    "STILL_S": "runner.llama.wire",
    "Launch": "runner.llama.launch",
    "LlamaClient": "runner.llama.wire",
    "LlamaLoop": "runner.llama.llama_loop",
    "LlamaResponder": "runner.llama.llama_responder",
    "LlamaTrouble": "runner.llama.wire",
    "SentWorks": "runner.llama.open_answer",
    "differing": "runner.llama.wire",
    "launch_of": "runner.llama.launch",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(import_module(_HOMES[name]), name)
