"""Choose one quantisation among the GGUF files of a repository.

Pure. If the model's name has a quantisation after a colon, in upper or lower case, that
quantisation is chosen. Without one, the memory of the node decides: the largest quantisation of at
most 8 bits that fits is chosen. Its memory is estimated as in placement, with an assumed size of
the KV cache. If none fits, the smallest is chosen; the exact estimate, from the file's header, may
then refuse the pull. Projectors, adapters and importance matrices are not models, and are never
chosen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bus.models.gguf import (
    FIXED_BYTES,
    FULL,
    OLD,
    OVERHEAD,
    canonical,
    is_gguf,
    lacking_parts,
    part_name,
    quantization_in,
    repository_of,
    stem_of,
    weight_files,
)
from bus.wire.ids import ModelId
from worker.models.manifest import is_plain

MEMORY_SHARE = 0.75
"""The share of a node's memory that models may use (`master.placement`)."""
KV_BYTES = 1_100_000_000
"""The assumed size of the KV cache: about that of 8,192 tokens in a model of 8 billion
parameters."""
_NOT_MODELS = re.compile(r"(?i)(?:^|[-_./])(?:mmproj|imatrix|lora|adapter|ggml-vocab)(?=$|[-_.])")
MOST_NAMED = 40


@dataclass(frozen=True, slots=True)
class GgufOffer:
    """A quantisation in a repository: the paths of its file or its parts, and their size. `lacks`:
    which parts are missing; empty: none."""

    quantization: str
    paths: tuple[str, ...]
    size_bytes: int
    lacks: str = ""

    @property
    def file(self) -> str:
        """Return the name of its file, or of its first part."""
        return self.paths[0].rpartition("/")[2]

    @property
    def text(self) -> str:
        return f"{self.quantization or self.file} ({_size(self.size_bytes)})"


@dataclass(frozen=True, slots=True)
class GgufChoice:
    """The chosen quantisation, and why."""

    offer: GgufOffer
    why: str


@dataclass(frozen=True, slots=True)
class NoChoice:
    """Why no quantisation is chosen."""

    reason: Literal["not_found", "unfit"]
    text: str


def gguf_offers(sizes: Mapping[str, int]) -> list[GgufOffer]:
    """Return the quantisations among the files of a repository, the smallest first. `sizes` maps
    the paths of all files to their sizes in bytes."""
    groups: dict[tuple[str, str], list[str]] = {}
    for path in sorted(sizes):
        if is_gguf(path) and not _NOT_MODELS.search(path):
            folder, _, name = path.rpartition("/")
            part = part_name(name)
            whole = name if part is None else f"{part.stem} {part.count}"
            groups.setdefault((folder, whole), []).append(path)
    offers = [_offer(paths, sizes) for paths in groups.values()]
    return sorted(offers, key=lambda offer: (offer.size_bytes, offer.paths))


def choose_gguf(
    model: ModelId, sizes: Mapping[str, int], memory_bytes: int
) -> GgufChoice | NoChoice:
    """Return the quantisation to pull of a repository with files of these sizes in bytes. `model`
    is OWNER/NAME, or OWNER/NAME:QUANTISATION. `memory_bytes`: the memory of the node; 0: no
    limit."""
    repository, tag = repository_of(model)
    offers = gguf_offers(sizes)
    if is_gguf(tag):
        offers = [_offer([path], sizes) for path in sorted(sizes) if _is_named(path, tag)] or offers
    if not offers:
        return NoChoice("unfit", f"{repository} has no GGUF file of a language model")
    fitting = [offer for offer in offers if _is_tagged(offer, tag)] if tag else offers
    if not fitting:
        text = f"{repository} has no quantisation {tag}; it has {_listed(offers)}"
        return NoChoice("not_found", text)
    whole = [offer for offer in fitting if not offer.lacks]
    if not whole:
        return NoChoice("unfit", f"{repository} is incomplete: {fitting[0].lacks}")
    if len({stem_of(offer.file) for offer in whole}) > 1:
        files = ", ".join(offer.file for offer in whole[:MOST_NAMED])
        text = (
            f"{repository} has GGUF files of several models: {files}; name one, such as "
            f"{repository}:{whole[0].file}"
        )
        return NoChoice("unfit", text)
    if tag:
        offer = min(whole, key=lambda offer: len(offer.paths))
        return _plain(GgufChoice(offer, f"{offer.text}, as named"))
    return _plain(_by_memory(repository, whole, memory_bytes))


def _by_memory(repository: ModelId, offers: Sequence[GgufOffer], memory_bytes: int) -> GgufChoice:
    most = int(MEMORY_SHARE * memory_bytes)
    kinds: tuple[Callable[[GgufOffer], bool], ...] = (
        lambda offer: offer.quantization not in FULL | OLD,
        lambda offer: offer.quantization in OLD,
        lambda offer: offer.quantization in FULL,
    )
    where = f"the {_size(most)} that models may use here"
    if len(offers) == 1:
        return GgufChoice(offers[0], f"{offers[0].text}, the only quantisation")
    for kind in kinds:
        fitting = [offer for offer in offers if kind(offer) and _fits(offer, most)]
        if fitting:
            bits = "" if fitting[-1].quantization in FULL else " of at most 8 bits"
            why = f"{fitting[-1].text}: the largest{bits} that fits into {where}"
            break
    else:
        fitting = [offers[0]]
        why = f"{offers[0].text}: the smallest, because none fits into {where}"
    others = f"name another of the {len(offers)} as {repository}:QUANTISATION"
    return GgufChoice(fitting[-1], f"{why}; {others}")


def _fits(offer: GgufOffer, most_bytes: int) -> bool:
    need = OVERHEAD * offer.size_bytes + FIXED_BYTES + KV_BYTES
    return not most_bytes or need <= most_bytes


def _offer(paths: Sequence[str], sizes: Mapping[str, int]) -> GgufOffer:
    names = [path.rpartition("/")[2] for path in paths]
    lacks = (
        "" if weight_files(names) else lacking_parts(names) or f"{names[0]} is not a complete model"
    )
    size_bytes = sum(sizes[path] for path in paths)
    return GgufOffer(quantization_in(paths[0]), tuple(paths), size_bytes, lacks)


def _is_named(path: str, tag: str) -> bool:
    name = path.rpartition("/")[2]
    return name.casefold() == tag.casefold() and part_name(name) is None


def _is_tagged(offer: GgufOffer, tag: str) -> bool:
    if is_gguf(tag):
        return tag.casefold() in (path.rpartition("/")[2].casefold() for path in offer.paths)
    return offer.quantization == canonical(tag)


def _plain(choice: GgufChoice) -> GgufChoice | NoChoice:
    """Return the choice; or a NoChoice if a file's name has characters that shoal does not
    store."""
    for path in choice.offer.paths:
        name = path.rpartition("/")[2]
        if not is_plain(name):
            text = (
                f"the file name {name[:80]!r} has other characters than letters, digits and _.+=-"
            )
            return NoChoice("unfit", text)
    return choice


def _listed(offers: Sequence[GgufOffer]) -> str:
    more = len(offers) - MOST_NAMED
    names = [offer.text for offer in offers[:MOST_NAMED]]
    return ", ".join([*names, f"and {more} more"] if more > 0 else names)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:,.1f} MB"
