"""The form of messages that a chat template needs. It is found when the model loads, by rendering
marked test messages, and is applied to each request.

Pure, given a renderer. It knows messages and forms, but no tokenizer and no family.
"""

from __future__ import annotations

from runner.text.shapes.kept import LostPart, lost_parts, unseen_parts
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
    "unseen_parts",
]
