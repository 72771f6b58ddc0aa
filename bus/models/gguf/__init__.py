"""A GGUF file, llama.cpp's format of models: its header, and what the header says about the model.

Pure: the caller opens the file. A header may lie. Every count, length, type and offset is checked
before it is used, a bounded number of bytes is read, and an error says what is wrong.
"""

from bus.models.gguf.abilities import (
    ABILITIES,
    DTYPE,
    ENGINE,
    HOW_TO_ADD,
    LLAMA_TAG,
    EngineAbility,
    engine_of,
    missing_ability,
)
from bus.models.gguf.facts import GgufFacts, gguf_facts, is_part, weight_file
from bus.models.gguf.header import BadGguf, CutGguf, GgufHeader, LongArray, read_header
from bus.models.gguf.tensors import GgufTensor

__all__ = [
    "ABILITIES",
    "DTYPE",
    "ENGINE",
    "HOW_TO_ADD",
    "LLAMA_TAG",
    "BadGguf",
    "CutGguf",
    "EngineAbility",
    "GgufFacts",
    "GgufHeader",
    "GgufTensor",
    "LongArray",
    "engine_of",
    "gguf_facts",
    "is_part",
    "missing_ability",
    "read_header",
    "weight_file",
]
