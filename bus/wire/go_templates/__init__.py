"""Templates in Go's `text/template`, as far as Ollama's use it: read, and turned into prompts.

Pure, and of Python's own library alone: a gateway reads a template to refuse what is none, and the
process that renders runs it (decision 0028). A template is a stranger's: reading is bounded by its
size, running by steps, depth and text, and all that it may do ends in text or `GoTemplateError`.
"""

from __future__ import annotations

from bus.wire.go_templates.conversation import prompt_of
from bus.wire.go_templates.parser import parse_template
from bus.wire.go_templates.tree import TEMPLATE_BYTES, GoTemplate, GoTemplateError

__all__ = [
    "TEMPLATE_BYTES",
    "GoTemplate",
    "GoTemplateError",
    "parse_template",
    "prompt_of",
]
