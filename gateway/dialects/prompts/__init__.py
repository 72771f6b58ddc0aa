"""The API for tokens: tokenise texts and conversations, detokenise tokens, render chat templates.

Pure. Other packages import only its table of routes.
"""

from gateway.dialects.prompts.api import PROMPTS

__all__ = ["PROMPTS"]
