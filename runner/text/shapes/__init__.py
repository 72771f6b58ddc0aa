"""The message shape that a chat template needs: found at load with marked messages, applied to each
request.

Pure, given a renderer. Knows messages and shapes, but no tokenizer and no family.
"""

from __future__ import annotations

from runner.text.shapes.kept import LostPart, lost_parts
from runner.text.shapes.messages import chat_messages, message_text, tool_objects
from runner.text.shapes.probe import RenderAs, probe_template
from runner.text.shapes.shape import PLAIN, TemplateShape

__all__ = [
    "PLAIN",
    "LostPart",
    "RenderAs",
    "TemplateShape",
    "chat_messages",
    "lost_parts",
    "message_text",
    "probe_template",
    "tool_objects",
]
