"""Tokenizes texts and conversations, detokenizes tokens, and renders chat templates.

Pure. Other packages import only its table.
"""

from gateway.dialects.prompts.api import PROMPTS

__all__ = ["PROMPTS"]
