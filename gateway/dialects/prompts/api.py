"""The API of prompts as a table: paths and fields of vLLM's and of llama.cpp's servers.

Pure. Failures are told as OpenAI's are.
"""

from __future__ import annotations

from gateway.dialects import dialect
from gateway.dialects.openai.api import OPENAI
from gateway.dialects.prompts.bodies import ApplyTemplateBody, DetokenizeBody, TokenizeBody
from gateway.dialects.prompts.dialect import ApplyTemplate, Detokenize, Tokenize

# fmt: off
PROMPTS = dialect.Api(
    title="Prompts",
    envelope=OPENAI.envelope,
    endpoints=(
        dialect.ReadsPrompt("/tokenize", "The tokens of a text or a conversation",
                            Tokenize(), TokenizeBody),
        dialect.ReadsPrompt("/detokenize", "The text of tokens", Detokenize(), DetokenizeBody),
        dialect.ReadsPrompt("/apply-template", "The text that a model's template makes of messages",
                            ApplyTemplate(), ApplyTemplateBody),
    ),
    id_prefixes=("prompt-",),
)
# fmt: on
