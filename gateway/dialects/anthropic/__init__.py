"""Anthropic's messages: bodies, turns, rendering.

Pure. Entered by its table alone.
"""

from gateway.dialects.anthropic.api import ANTHROPIC

__all__ = ["ANTHROPIC"]
