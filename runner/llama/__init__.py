"""Serves a GGUF model with llama-server, a child process of the runner.

shoal renders the conversation, tokenises it and parses the output; llama-server computes. It gets
token ids and returns text, because it sends no id for a token that ends inside a character. The
table `bus.models.gguf.ABILITIES` says which requests shoal serves and refuses for GGUF models.
The names below are imported on first use, because `runner.llama.program` needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.llama.child import ChildKilled
    from runner.llama.launch import Launch, launch_of
    from runner.llama.llama_loop import LlamaLoop, plan_launch
    from runner.llama.llama_responder import LlamaResponder
    from runner.llama.open_answer import SentWorks
    from runner.llama.slots import SlotDisk, SlotFiles, Slots, slots_key
    from runner.llama.vectors import LlamaEmbedder
    from runner.llama.wire import STALLED_S, STILL_S, LlamaClient, LlamaTrouble, differing

__all__ = [
    "STALLED_S",
    "STILL_S",
    "ChildKilled",
    "Launch",
    "LlamaClient",
    "LlamaEmbedder",
    "LlamaLoop",
    "LlamaResponder",
    "LlamaTrouble",
    "SentWorks",
    "SlotDisk",
    "SlotFiles",
    "Slots",
    "differing",
    "launch_of",
    "plan_launch",
    "slots_key",
]

_HOMES = {
    "STALLED_S": "runner.llama.wire",
    "STILL_S": "runner.llama.wire",
    "ChildKilled": "runner.llama.child",
    "Launch": "runner.llama.launch",
    "LlamaClient": "runner.llama.wire",
    "LlamaEmbedder": "runner.llama.vectors",
    "LlamaLoop": "runner.llama.llama_loop",
    "LlamaResponder": "runner.llama.llama_responder",
    "LlamaTrouble": "runner.llama.wire",
    "SentWorks": "runner.llama.open_answer",
    "SlotDisk": "runner.llama.slots",
    "SlotFiles": "runner.llama.slots",
    "Slots": "runner.llama.slots",
    "differing": "runner.llama.wire",
    "launch_of": "runner.llama.launch",
    "plan_launch": "runner.llama.llama_loop",
    "slots_key": "runner.llama.slots",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(import_module(_HOMES[name]), name)
