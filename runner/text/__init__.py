"""Turns requests into tokens by templates, tokenising and grammars, and turns tokens into text.

The output of a request has choices. A choice is divided into spans (text, thinking, tool calls) and
ends at stop strings.

Pure, except the text thread and the tokenizer that this thread opens.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from runner.text.prepared import (
    CallPiece,
    ChoiceOutput,
    ChoiceReader,
    EngineTokenizer,
    Piece,
    PreparedChoice,
    PreparedRequest,
    PromptPiece,
    PromptReader,
    RankedPair,
    ReadPrompt,
    TextPiece,
    TextWorks,
    ThinkingCount,
    ThinkingLimit,
    TokenizerError,
)
from runner.text.rendering import RendererNotReady

if TYPE_CHECKING:
    from runner.text.detokenise import SentText
    from runner.text.embedding import (
        EmbeddingFolder,
        EmbeddingInputs,
        EmbeddingPrompt,
        PairInputs,
        open_embedding_folder,
    )
    from runner.text.families import Parsers
    from runner.text.grammar import BadGrammar, DeadEnd, RowMatcher, RowMatchers, open_matcher
    from runner.text.text import Text
    from runner.text.thread import Answer, TextThread, import_libraries, text_size
    from runner.text.tokenizer import ModelTokenizer

__all__ = [
    "Answer",
    "BadGrammar",
    "CallPiece",
    "ChoiceOutput",
    "ChoiceReader",
    "DeadEnd",
    "EmbeddingFolder",
    "EmbeddingInputs",
    "EmbeddingPrompt",
    "EngineTokenizer",
    "ModelTokenizer",
    "PairInputs",
    "Parsers",
    "Piece",
    "PreparedChoice",
    "PreparedRequest",
    "PromptPiece",
    "PromptReader",
    "RankedPair",
    "ReadPrompt",
    "RendererNotReady",
    "RowMatcher",
    "RowMatchers",
    "SentText",
    "Text",
    "TextPiece",
    "TextThread",
    "TextWorks",
    "ThinkingCount",
    "ThinkingLimit",
    "TokenizerError",
    "import_libraries",
    "open_embedding_folder",
    "open_matcher",
    "text_size",
]

_HOMES = {
    "Answer": "runner.text.thread",
    "BadGrammar": "runner.text.grammar",
    "DeadEnd": "runner.text.grammar",
    "EmbeddingFolder": "runner.text.embedding",
    "EmbeddingInputs": "runner.text.embedding",
    "EmbeddingPrompt": "runner.text.embedding",
    "ModelTokenizer": "runner.text.tokenizer",
    "PairInputs": "runner.text.embedding",
    "Parsers": "runner.text.families",
    "RowMatcher": "runner.text.grammar",
    "RowMatchers": "runner.text.grammar",
    "SentText": "runner.text.detokenise",
    "Text": "runner.text.text",
    "TextThread": "runner.text.thread",
    "import_libraries": "runner.text.thread",
    "open_embedding_folder": "runner.text.embedding",
    "open_matcher": "runner.text.grammar",
    "text_size": "runner.text.thread",
}
"""Names from modules that are not pure, or that load the libraries of tokenizers or grammars;
loaded on first use."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(import_module(_HOMES[name]), name)
