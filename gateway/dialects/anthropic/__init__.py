"""Anthropic's messages API: bodies, turns of a conversation, rendering.

Pure. Other packages import only its table of routes.
"""

from gateway.dialects.anthropic.api import ANTHROPIC

__all__ = ["ANTHROPIC"]
