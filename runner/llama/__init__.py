"""Serves a GGUF model with llama-server, a child process of the runner.

shoal renders the conversation, tokenises it and parses the output; llama-server computes. It takes
token ids and returns text, because it sends no id for a token that ends inside a character. What it
cannot do is refused by the table `bus.models.gguf.ABILITIES`.
"""

from runner.llama.child import Child, ChildEnded
from runner.llama.launch import Launch, launch_of
from runner.llama.llama_loop import LlamaLoop
from runner.llama.llama_responder import LlamaResponder
from runner.llama.open_answer import SentWorks
from runner.llama.wire import STALLED_S, LlamaClient, LlamaTrouble, differing

__all__ = [
    "STALLED_S",
    "Child",
    "ChildEnded",
    "Launch",
    "LlamaClient",
    "LlamaLoop",
    "LlamaResponder",
    "LlamaTrouble",
    "SentWorks",
    "differing",
    "launch_of",
]
