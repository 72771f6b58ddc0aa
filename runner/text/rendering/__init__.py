"""Chat templates are a stranger's code: they run in a process of their own, within limits.

Knows no tokenizer and no message; a template, plain data and limits in, text out.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from runner.text.rendering.limits import (
    RendererNotReady,
    RenderLimits,
    TemplateError,
    TemplateStopped,
)

if TYPE_CHECKING:
    from runner.text.rendering.renderer import Renderer

__all__ = ["RenderLimits", "Renderer", "RendererNotReady", "TemplateError", "TemplateStopped"]

_HOMES = {"Renderer": "runner.text.rendering.renderer"}
"""What is no pure module."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(import_module(_HOMES[name]), name)
