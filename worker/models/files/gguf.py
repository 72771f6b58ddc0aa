"""Talks to the disk: reads the header of a model's GGUF file."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from bus.models.gguf import BadGguf, CutGguf, GgufFacts, gguf_facts, read_header
from worker.models.files.headers import refuse_pointer
from worker.models.passed_over import UnfitModel

ANOTHER = "download it again, or use another quantisation of the model"


def gguf_facts_of(path: Path) -> tuple[GgufFacts, str]:
    """Return the facts of a file's header and the digest of the header. Raises OSError,
    UnfitModel."""
    refuse_pointer(path)
    try:
        with open(path, "rb") as file:
            header = read_header(file, os.fstat(file.fileno()).st_size)
            file.seek(0)
            digest = sha256(file.read(header.data_at)).hexdigest()
        return gguf_facts(header), digest
    except CutGguf as error:
        raise UnfitModel("cut", f"{path.name} cannot be used: {error}", ANOTHER) from error
    except BadGguf as error:
        raise UnfitModel("bad_weights", f"{path.name} cannot be used: {error}", ANOTHER) from error
