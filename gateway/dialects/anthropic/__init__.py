"""Anthropic's messages API: bodies of requests, turns of a conversation, rendering of answers.

Pure. Other packages import only its table of routes.
"""

from gateway.dialects.anthropic.api import ANTHROPIC

__all__ = ["ANTHROPIC"]
