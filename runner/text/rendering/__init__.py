"""Renders chat templates. They are untrusted code, so a separate process runs them within limits.

It takes a template, plain data and limits, and returns text. It knows no tokenizer and no messages.
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
