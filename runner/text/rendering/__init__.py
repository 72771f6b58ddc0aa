"""Chat templates are untrusted code: they run in a process of their own, within limits.

Knows no tokenizer and no messages: a template, plain data and limits in, text out.
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
"""Names from modules that are not pure, loaded on first use."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(import_module(_HOMES[name]), name)
