"""Names of quantisations, in file names and after the colon of a model's name.

Pure. A quantisation of a hub's repository is called `OWNER/REPOSITORY:QUANTISATION`, as Ollama's
users write it. Upper case is the canonical form. A whole file name may follow the colon instead.
"""

from __future__ import annotations

import re

from bus.models.gguf.parts import is_gguf, part_name
from bus.wire.ids import ModelId

FULL = frozenset({"F32", "F16", "BF16"})
"""Number types of weights that are not quantised."""
OLD = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1"})
"""Old kinds. Newer kinds of the same size are better."""
_SAME = {"FP16": "F16", "FP32": "F32"}
_NAME = re.compile(
    r"(?<![A-Z0-9])((?:UD[-_])?(?:I?Q[1-8](?:_(?:K|[0148]|XXS|XS|S|M|L|XL|XXL|NL))*|TQ[12]_0"
    r"|BF16|FP?16|FP?32|[MN][XV]FP4(?:_MOE)?))(?![A-Z0-9])"
)


def canonical(tag: str) -> str:
    """Return the canonical form of a quantisation that a user wrote, such as `Q4_K_M` for `q4-k-m`.
    The name of a file is returned unchanged."""
    if is_gguf(tag):
        return tag
    name = tag.upper().replace("-", "_")
    return _SAME.get(name, f"UD-{name[3:]}" if name.startswith("UD_") else name)


def quantization_in(path: str) -> str:
    """Return the quantisation in the name of a file, else the one in the name of the nearest folder
    above it; empty if there is none."""
    for text in reversed(path.upper().removesuffix(".GGUF").split("/")):
        if names := _NAME.findall(text):
            return canonical(names[-1])
    return ""


def stem_of(path: str) -> str:
    """Return the name of a file in lower case, without its quantisation, its part and punctuation:
    equal for all quantisations of a model."""
    name = path.rpartition("/")[2]
    part = part_name(name)
    text = name[: -len(".gguf")] if part is None else part.stem
    names = _NAME.findall(text.upper())
    plain = text.upper().replace(names[-1], "") if names else text.upper()
    return re.sub(r"[^A-Z0-9]", "", plain).lower()


def repository_of(model: str) -> tuple[ModelId, str]:
    """Return the hub's repository of a model, and the quantisation or file in its name (empty: the
    name has none)."""
    repository, _, tag = model.partition(":")
    return ModelId(repository), tag
