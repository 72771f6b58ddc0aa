"""The limits of one render of a chat template, and its errors. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from bus.wire.errors import ShoalError


class TemplateError(ShoalError):
    """The template itself raised an error; its text is the template's own."""


class TemplateStopped(ShoalError):
    """The template exceeded a limit, which the error's text names."""


class RendererNotReady(ShoalError):
    """The rendering process did not start in time: the machine is at fault, not a template."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """The limits of rendering a template once. The limits of memory and of the resulting text grow
    by a fixed amount per byte of the template and its variables."""

    processor_s: float = 2.0
    wall_s: float = 3.0
    memory_bytes: int = 128 << 20
    memory_per_byte: int = 16
    text_bytes: int = 8 << 20
    text_per_byte: int = 4
