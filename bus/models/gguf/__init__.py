"""A GGUF file, llama.cpp's format of models: its name and parts, its header, and what the header
says about the model.

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
from bus.models.gguf.facts import FIXED_BYTES, OVERHEAD, GgufFacts, gguf_facts
from bus.models.gguf.header import (
    BadGguf,
    CutGguf,
    GgufHeader,
    LongArray,
    OtherGguf,
    read_header,
)
from bus.models.gguf.parts import (
    PartName,
    is_gguf,
    lacking_parts,
    part_name,
    weight_file,
    weight_files,
)
from bus.models.gguf.quantizations import (
    FULL,
    OLD,
    canonical,
    quantization_in,
    repository_of,
    stem_of,
)
from bus.models.gguf.tensors import GgufTensor

__all__ = [
    "ABILITIES",
    "DTYPE",
    "ENGINE",
    "FIXED_BYTES",
    "FULL",
    "HOW_TO_ADD",
    "LLAMA_TAG",
    "OLD",
    "OVERHEAD",
    "BadGguf",
    "CutGguf",
    "EngineAbility",
    "GgufFacts",
    "GgufHeader",
    "GgufTensor",
    "LongArray",
    "OtherGguf",
    "PartName",
    "canonical",
    "engine_of",
    "gguf_facts",
    "is_gguf",
    "lacking_parts",
    "missing_ability",
    "part_name",
    "quantization_in",
    "read_header",
    "repository_of",
    "stem_of",
    "weight_file",
    "weight_files",
]
