"""The API of prompts as a table of endpoints, with paths and fields of vLLM's and llama.cpp's
servers.

Pure. Errors have the form of OpenAI's errors.
"""

from __future__ import annotations

from gateway.dialects import api_table
from gateway.dialects.openai.api import OPENAI
from gateway.dialects.prompts import answers
from gateway.dialects.prompts.bodies import ApplyTemplateBody, DetokenizeBody, TokenizeBody
from gateway.dialects.prompts.dialect import ApplyTemplate, Detokenize, Tokenize

# fmt: off
PROMPTS = api_table.Api(
    title="Prompts",
    envelope=OPENAI.envelope,
    endpoints=(
        api_table.ReadsPrompt("/tokenize", "Tokenize a text or a conversation",
                              Tokenize(), TokenizeBody, answers.TokenizeAnswer),
        api_table.ReadsPrompt("/detokenize", (
            "Detokenize tokens into "
            "text"
            ), Detokenize(), DetokenizeBody,
                              answers.DetokenizeAnswer),
        api_table.ReadsPrompt("/apply-template", "Render messages with the model's template",
                              ApplyTemplate(), ApplyTemplateBody, answers.ApplyTemplateAnswer),
    ),
    id_prefixes=("prompt-",),
)
# fmt: on
