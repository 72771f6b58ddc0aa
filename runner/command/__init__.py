"""Serves a model with a program that the operator listed in `engines.toml`, such as vLLM.
The program speaks OpenAI's or Anthropic's HTTP API.

The program renders the conversation and parses its own output. shoal starts it on a free port of
this machine, and ends it with all its children. Requests are translated (`bus.translation`), and
the program gets a limited number at a time. A field that cannot be translated is refused, and the
error names it.

The names below are loaded when they are used, because `runner.command.guard` needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.command.calls import EngineTrouble
    from runner.command.command_loop import CommandLoop
    from runner.command.command_responder import CommandResponder, warm_up_of

__all__ = ["CommandLoop", "CommandResponder", "EngineTrouble", "warm_up_of"]

_HOMES = {
    "CommandLoop": "runner.command.command_loop",
    "CommandResponder": "runner.command.command_responder",
    "EngineTrouble": "runner.command.calls",
    "warm_up_of": "runner.command.command_responder",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(import_module(_HOMES[name]), name)
