"""What one chat template wants: found out at load with marked messages, kept to for each request.

Pure, given what renders. Knows messages and shapes; no tokenizer, no family.
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
