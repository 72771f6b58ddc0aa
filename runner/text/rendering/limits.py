"""What one render of a chat template may take, and how it may fail. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from bus.wire.errors import ShoalError


class TemplateError(ShoalError):
    """The template itself refuses; the text is its own."""


class TemplateStopped(ShoalError):
    """The template went beyond a limit; the text says beyond which."""


class RendererNotReady(ShoalError):
    """The process that renders did not start in time: no template is to blame, but the machine."""


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What one render may take. Memory and text grow with the question, by so much a byte."""

    processor_s: float = 2.0
    wall_s: float = 3.0
    memory_bytes: int = 128 << 20
    memory_per_byte: int = 16
    text_bytes: int = 8 << 20
    text_per_byte: int = 4

    def memory(self, asked: int) -> int:
        """Return the bytes of memory for a question of `asked` bytes."""
        return self.memory_bytes + self.memory_per_byte * asked

    def text(self, asked: int) -> int:
        """Return the most bytes of text for a question of `asked` bytes."""
        return self.text_bytes + self.text_per_byte * asked
