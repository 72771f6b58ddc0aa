"""Anthropic's messages API: bodies, turns, rendering.

Pure. Other packages import only its table.
"""

from gateway.dialects.anthropic.api import ANTHROPIC

__all__ = ["ANTHROPIC"]
