"""What a model reads: the tokens of a text or a conversation, the text of tokens, the template's.

Pure. Entered by its table alone.
"""

from gateway.dialects.prompts.api import PROMPTS

__all__ = ["PROMPTS"]
