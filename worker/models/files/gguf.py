"""Talks to the disk: reads the headers of a model's GGUF file, or of its parts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from bus.models.gguf import (
    BadGguf,
    CutGguf,
    GgufFacts,
    GgufHeader,
    OtherGguf,
    gguf_facts,
    read_header,
)
from worker.models.files.headers import refuse_pointer
from worker.models.passed_over import UnfitModel

ANOTHER = "download the file again, or use another quantisation of the model"


def gguf_facts_of(paths: Sequence[Path]) -> tuple[GgufFacts, str]:
    """Return the facts of a model whose file, or whose parts in order, are `paths`, and the digest
    of the headers. Raises OSError, UnfitModel."""
    headers: list[GgufHeader] = []
    digest = sha256()
    for path in paths:
        header, data = gguf_header_of(path)
        headers.append(header)
        digest.update(data)
    try:
        return gguf_facts(*headers), digest.hexdigest()
    except BadGguf as error:
        raise _unusable(paths[0], error) from error


def gguf_header_of(path: Path) -> tuple[GgufHeader, bytes]:
    """Return a file's header, and its bytes. Raises OSError, UnfitModel."""
    refuse_pointer(path)
    try:
        with open(path, "rb") as file:
            header = read_header(file, os.fstat(file.fileno()).st_size)
            file.seek(0)
            return header, file.read(header.data_at)
    except CutGguf as error:
        raise UnfitModel("cut", f"{path.name} cannot be used: {error}", ANOTHER) from error
    except BadGguf as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: BadGguf) -> UnfitModel:
    remedy = error.remedy if isinstance(error, OtherGguf) else ANOTHER
    return UnfitModel("bad_weights", f"{path.name} cannot be used: {error}", remedy)
