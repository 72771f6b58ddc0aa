"""Talks to the disk: finds the MTP head or the block drafter that a model's card asks for, and its
sizes.

A head's tensors are in the model's own files, or in a folder inside the model's folder. A block
drafter is always in such a folder. Only headers and `config.json` are read. If one is missing, this
costs speed, never an answer: the model then decodes plainly, and `shoal ls` has a notice. The
runner checks the tensors themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bus.models.block_drafters import CONFIG, block_shape, name_problem
from bus.models.cards import Notes
from bus.models.mtp_heads import head_names
from bus.wire.cards import ModelCard
from bus.wire.messages.requests import DraftWeights
from worker.models.files.headers import header_of
from worker.models.files.tensors import Tensor
from worker.models.passed_over import Unfit, UnfitModel

WEIGHTS = ".safetensors"
BLOCK = "block drafter"


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The bytes of a head's tensors. `stored` includes the copies of the model's embedding and
    projection among them. `loaded` excludes these copies, because they are not read into memory."""

    stored: int = 0
    loaded: int = 0


def with_head(
    card: ModelCard, notes: Notes, tensors: Iterable[Tensor], *, float32: bool
) -> tuple[ModelCard, Unfit | None]:
    """Return the card of a text model with the MTP head that its `card.toml` asks for, and a notice
    if there is none. `tensors` are those of the model's own files. A head among them is not part of
    the model's weights, because it is loaded only if the card asks for it."""
    own = _sizes(tensors, card.layers, float32=float32).stored
    card = card.model_copy(
        update={
            "weights_bytes": card.weights_bytes - own,
            "head_bytes": max(card.head_bytes - own, 0),
        }
    )
    if notes.block_folder or notes.speculate == "block":
        return _with_block(card, notes, float32=float32)
    if not (notes.mtp_folder or notes.mtp_depth or notes.speculate == "mtp"):
        return card, None
    if notes.draft_model is not None:
        why = "the card names a draft model too, and a runner can use only one drafter"
        return card, _notice(why, "remove draft_model, or the keys of the MTP head")
    folder = Path(card.path, notes.mtp_folder)
    size = _head_in(folder, card.layers, float32=float32)
    draft = DraftWeights(
        model=card.model, drafter="mtp", folder=notes.mtp_folder, depth=notes.mtp_depth or 1
    )
    if isinstance(size, int):
        kv_bytes = max(card.layer_kv, default=0)
        update = {"path": str(folder), "weights_bytes": size, "kv_bytes_per_token": kv_bytes}
        return card.model_copy(update={"draft": draft.model_copy(update=update)}), None
    draft = draft.model_copy(update={"why_not": f"the MTP head cannot be used: {size}"})
    remedy = "put the head's weights there, set mtp_folder to their folder, or remove the key"
    return card.model_copy(update={"draft": draft}), _notice(size, remedy)


def _with_block(card: ModelCard, notes: Notes, *, float32: bool) -> tuple[ModelCard, Unfit | None]:
    """Return the card with the block drafter that its `card.toml` asks for, and a notice if there
    is none, or if a key beside it has no effect."""
    others = ("mtp_folder", "mtp_depth", "draft_model")
    if other := next((name for name in others if getattr(notes, name)), None):
        why = f"the card sets {other} too, and a runner can use only one drafter"
        return card, _notice(why, "remove one of the two keys", BLOCK)
    draft = DraftWeights(model=card.model, drafter="block", folder=notes.block_folder)
    size = "the card sets no block_folder"
    if notes.block_folder:
        size = _block_in(Path(card.path, notes.block_folder), float32=float32)
    if isinstance(size, int):
        path = str(Path(card.path, notes.block_folder))
        update = {"path": path, "weights_bytes": size}
        return card.model_copy(update={"draft": draft.model_copy(update=update)}), None
    draft = draft.model_copy(update={"why_not": f"the block drafter cannot be used: {size}"})
    remedy = "put its config.json and weights there, set block_folder to their folder, or remove it"
    return card.model_copy(update={"draft": draft}), _notice(size, remedy, BLOCK)


def _block_in(folder: Path, *, float32: bool) -> int | str:
    """Return the bytes of the block drafter in a folder and of the hidden states that it keeps, or
    why there is none."""
    try:
        config: Any = json.loads((folder / CONFIG).read_bytes())
    except FileNotFoundError:
        return f"the folder {folder.name} has no {CONFIG}"
    except (OSError, ValueError) as error:
        return f"{folder.name}/{CONFIG} cannot be read ({type(error).__name__})"
    shape = block_shape(cast(dict[str, Any], config) if isinstance(config, dict) else {})
    if isinstance(shape, str):
        return f"{folder.name}/{shape}"
    tensors = _tensors_in(folder)
    if isinstance(tensors, str):
        return tensors
    problem = name_problem(shape, (tensor.name for tensor in tensors))
    size = sum(tensor.loaded_bytes(float32=float32) for tensor in tensors)
    return problem or size + shape.context_bytes


def head_marks(entries: Mapping[str, os.DirEntry[str]]) -> Iterable[tuple[object, ...]]:
    """Yield values that change whenever weights in a folder inside a model's folder change."""
    for name, entry in entries.items():
        if name.startswith(".") or not entry.is_dir():
            continue
        with contextlib.suppress(OSError):
            folder = Path(entry.path)
            for path in (*_weights_in(folder), *folder.glob(CONFIG)):
                stat = path.stat()
                yield str(path), stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size


def _head_in(folder: Path, layers: int, *, float32: bool) -> int | str:
    """Return the bytes of the head in a folder, or why there is none."""
    tensors = _tensors_in(folder)
    if isinstance(tensors, str):
        return tensors
    size = _sizes(tensors, layers, float32=float32).loaded
    return size or f"the folder {folder.name} has no tensors of an MTP head"


def _tensors_in(folder: Path) -> list[Tensor] | str:
    """Return the tensors in a folder, or why they cannot be read."""
    tensors: list[Tensor] = []
    try:
        for path in _weights_in(folder):
            tensors += header_of(path)[1]
    except FileNotFoundError:
        return f"the folder {folder.name} is missing"
    except OSError as error:
        return f"{folder.name} cannot be read ({error.strerror or error})"
    except UnfitModel as error:
        return f"{folder.name}/{error.unfit.why}"
    return tensors


def _weights_in(folder: Path) -> list[Path]:
    """Return the weight files of a folder, by name. Raises OSError."""
    return sorted(path for path in folder.iterdir() if path.name.endswith(WEIGHTS))


def _sizes(tensors: Iterable[Tensor], layers: int, *, float32: bool) -> _Sizes:
    """Return the sizes of the head among tensors; zeros if there is none."""
    sizes = {tensor.name: tensor.loaded_bytes(float32=float32) for tensor in tensors}
    if (names := head_names(sizes, layers)) is None:
        return _Sizes()
    stored = sum(sizes[name] for part in names.parts.values() for name in part.values())
    return _Sizes(stored, sum(sizes[name] for name in names.all))


def _notice(why: str, remedy: str, name: str = "MTP head") -> Unfit:
    return Unfit("no_effect", f"card.toml: the {name} has no effect: {why}", remedy)
