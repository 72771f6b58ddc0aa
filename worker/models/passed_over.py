"""Why something that lies where models do is not taken for a model, and what to do about it.

Pure: names of files in, words out. A model's folder holds `config.json` and weights that are named
`model*.safetensors`, as MLX's loader looks for them, and its own name is one that requests can say.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

from bus.wire.ids import is_model_id

CONFIG = "config.json"
ADAPTERS = frozenset({"adapter_config.json", "adapters.safetensors", "adapter_model.safetensors"})
"""What LoRA training leaves, by mlx-lm or by PEFT."""
_WEIGHTS = re.compile(r"model.*\.safetensors")
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")
_UNFINISHED = re.compile(r".*\.(?:incomplete|part|partial|crdownload|download|aria2|!qb)", re.I)
_GGUF = re.compile(r".*\.(?:gguf|ggml)", re.I)
_PICKLED = re.compile(r".*\.(?:bin|pt|pth|ckpt|npz|h5|msgpack|onnx)", re.I)
_SAFETENSORS = re.compile(r".*\.safetensors", re.I)
_PACKED = re.compile(r".*\.(?:zip|tar|tgz|gz|xz|zst|7z|rar)", re.I)
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
CONVERT = "`mlx_lm.convert --hf-path OWNER/NAME --mlx-path FOLDER -q`"
"""What makes a model for MLX of the original one; it comes with shoal."""


class Unfit(NamedTuple):
    """Why it is not taken (what was seen is part of that), and the way out."""

    why: str
    remedy: str


class UnfitModel(ValueError):
    """A folder that looks like a model's and cannot be taken; `unfit` says why."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why)
        self.unfit = Unfit(why, remedy)


def weights_among(names: Iterable[str]) -> list[str]:
    """Return the files that MLX's loader would read, in order."""
    return sorted(name for name in names if _WEIGHTS.fullmatch(name))


def has_weights(names: Iterable[str]) -> bool:
    """Return whether there are weights among these files, of any kind."""
    kinds = (_SAFETENSORS, _GGUF, _PICKLED, _UNFINISHED)
    return any(kind.fullmatch(name) for name in names for kind in kinds)


def unfit_file(name: str) -> Unfit | None:
    """Return why a file is no model by itself; None for one that has nothing to do with models."""
    if _GGUF.fullmatch(name):
        return _gguf(name)
    if _UNFINISHED.fullmatch(name):
        return _unfinished(name)
    if _PACKED.fullmatch(name):
        return Unfit(f"{name} is packed", "unpack it: a model is a folder")
    if _SAFETENSORS.fullmatch(name) or _PICKLED.fullmatch(name):
        remedy = f"put it into a folder with its {CONFIG} and its tokenizer's files"
        return Unfit(f"{name} lies alone, and a model is a folder", remedy)
    return None


def unfit_folder(names: Collection[str]) -> Unfit | None:
    """Return why a folder of these files is no model; None where it may be one."""
    weights = weights_among(names)
    if CONFIG in names and weights:
        return _missing_shards(weights)
    by_kind = {
        kind: first
        for kind in (_GGUF, _UNFINISHED, _SAFETENSORS, _PICKLED)
        if (first := next((name for name in sorted(names) if kind.fullmatch(name)), None))
    }
    if not weights and (found := ADAPTERS & set(names)):
        remedy = "move it into its model's folder as adapters/NAME, and ask for MODEL:NAME"
        return Unfit(f"a LoRA adapter alone ({min(found)}), which is applied to no model", remedy)
    if not weights and _GGUF in by_kind:
        return _gguf(by_kind[_GGUF])
    if _UNFINISHED in by_kind:
        return _unfinished(by_kind[_UNFINISHED])
    if weights:
        return Unfit(f"weights without a {CONFIG}", "copy it from where the model came from")
    if _SAFETENSORS in by_kind:
        why = f"{by_kind[_SAFETENSORS]} is not named model*.safetensors, as MLX's weights are"
        return Unfit(why, f"fetch the model as MLX or transformers have it, or {CONVERT}")
    if _PICKLED in by_kind:
        why = f"{by_kind[_PICKLED]} is not safetensors, and shoal loads nothing else"
        remedy = (
            "fetch it as safetensors; where there is none, let transformers write it: "
            "`AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER)`"
        )
        return Unfit(why, remedy)
    if CONFIG in names:
        return Unfit(f"a {CONFIG} without weights", "copy its model*.safetensors beside it")
    why = f"neither a {CONFIG} nor weights in it" if names else "an empty folder"
    return Unfit(why, "put a model's files into it, or remove it")


def unfit_name(name: str) -> Unfit | None:
    """Return why no request could say this name, with one that could be said; None where it can."""
    if is_model_id(name):
        return None
    return Unfit(
        "a model's name has letters a to z, digits, '.', '_' and '-' and begins with one of the "
        "first two",
        f"rename the folder, perhaps to {sayable(name)}",
    )


def too_deep(inner: str) -> Unfit:
    """Return why a model that lies two folders down is not found; `inner` is the lower one."""
    return Unfit(
        f"{inner} in it looks like a model, but lies too deep",
        "move it up: models are <name> or <owner>/<name>",
    )


def name_taken(by: str) -> Unfit:
    """Return why a second model of a name is not taken; `by` is the first one's folder."""
    return Unfit(f"{by} has that name and comes first", "rename one of the two folders")


def no_folder() -> Unfit:
    """Return why a link that leads nowhere is no model."""
    return Unfit("a link that leads nowhere", "mount what it leads to, or remove it")


def unreadable(error: Exception) -> Unfit:
    """Return why a folder whose files cannot be read is not taken."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    remedy = "let the user that runs shoal read it"
    return Unfit(f"it cannot be read: {said or type(error).__name__}", remedy)


def adapter_beside(names: Iterable[str]) -> Unfit | None:
    """Return why a model is not taken whose folder holds an adapter's files beside the weights:
    requests for it would get the model without."""
    found = sorted(ADAPTERS.intersection(names))
    if not found:
        return None
    remedy = "move them into adapters/NAME in that folder, and ask for MODEL:NAME; or fuse them"
    return Unfit(f"{', '.join(found)} beside the weights would not be applied", remedy)


def adapter_remedy() -> str:
    """Return the way out for an adapter that cannot be applied."""
    return "mend it or take it away, or fuse it: `mlx_lm.fuse --model MODEL --adapter-path FOLDER`"


def sayable(name: str) -> str:
    """Return a name like this one that requests can say."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    parts = [re.sub(r"\.{2,}", ".", _NO_NAME.sub("-", part)) for part in plain.split("/")]
    return "/".join(part.strip("-._") or "model" for part in parts)[:200]


def printable(text: str) -> str:
    """Return a file's name as it may be shown and sent: no control characters, no broken text."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _gguf(name: str) -> Unfit:
    remedy = (
        f"runners load MLX's safetensors: fetch the model from mlx-community, or convert what the "
        f"GGUF was made from: {CONVERT}"
    )
    return Unfit(f"{name} is GGUF, llama.cpp's format", remedy)


def _unfinished(name: str) -> Unfit:
    return Unfit(f"{name} is a download that did not end", "let it end, or start it again")


def _missing_shards(weights: Iterable[str]) -> Unfit | None:
    """Return which of the files that the others' names count are not there; None when all are."""
    here: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for stem, number, count in (m.groups() for m in map(_SHARD.fullmatch, weights) if m):
        here[stem, int(count)].add(int(number))
    for (stem, count), numbers in here.items():
        if (lacking := count - len(numbers)) > 0:
            first = next(number for number in range(1, count + 1) if number not in numbers)
            more = f" and {lacking - 1} more" if lacking > 1 else ""
            why = f"{stem}-{first:05}-of-{count:05}.safetensors{more} is missing"
            return Unfit(why, "fetch the rest of the model")
    return None
