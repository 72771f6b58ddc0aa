"""Why something that lies where models do is not taken for a model, and what to do about it.

Pure: names of files in, words out; the only home of these words. A model's folder holds
`config.json`, a tokenizer, and weights that are named `model*.safetensors`, as MLX's loader looks
for them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from bus.wire.cards import (
    NAME_CHARACTERS,
    PATH_CHARACTERS,
    WORDS_CHARACTERS,
    PassedOver,
    PassedOverReason,
)
from bus.wire.ids import ModelId

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
_TOKENIZER = re.compile(
    r"(tokenizer\.(json|model)|tekken\.json|vocab\.(json|txt)|.*\.tiktoken|sp(m|iece)\.model|.*\.bpe\.model)"
)
_SENSES = {
    "vision_config": "images", "vision_tower_config": "images", "visual": "images",
    "audio_config": "sound", "speech_config": "sound", "audio_encoder": "sound",
}  # fmt: skip
_MEDIA = re.compile(
    r"(?i)whisper|wav2vec|hubert|bark|musicgen|encodec|parler|seamless|clip|vit|"
    r"florence|blip|llava|idefics|vision|audio|speech|_vl(_|$)|vlm|omni"
)
"""Families of models that read or make something else than text."""
CONVERT = "`mlx_lm.convert --hf-path OWNER/NAME --mlx-path FOLDER -q`"
"""What makes a model for MLX of the original one; it comes with shoal."""


class Unfit(NamedTuple):
    """Why it is not taken: in a word that programs know, in a sentence (what was seen is part of
    that), and the way out. `aliases` are names that it would have given."""

    reason: PassedOverReason
    why: str
    remedy: str
    aliases: tuple[ModelId, ...] = ()


class UnfitModel(ValueError):
    """A folder that looks like a model's and cannot be taken; `unfit` says why."""

    def __init__(
        self, reason: PassedOverReason, why: str, remedy: str, aliases: tuple[ModelId, ...] = ()
    ) -> None:
        super().__init__(why)
        self.unfit = Unfit(reason, why, remedy, aliases)


def weights_among(names: Iterable[str]) -> list[str]:
    """Return the files that MLX's loader would read, in order."""
    return sorted(name for name in names if _WEIGHTS.fullmatch(name))


def has_weights(names: Iterable[str]) -> bool:
    """Return whether there are weights among these files, of any kind."""
    kinds = (_SAFETENSORS, _GGUF, _PICKLED, _UNFINISHED)
    return any(kind.fullmatch(name) for name in names for kind in kinds)


def unfit_file(name: str) -> Unfit:
    """Return why a file is no model by itself."""
    if _GGUF.fullmatch(name):
        return _gguf(name)
    if _UNFINISHED.fullmatch(name):
        return _unfinished(name)
    if _PACKED.fullmatch(name):
        return Unfit("packed", f"{name} is packed", "unpack it: a model is a folder")
    if _SAFETENSORS.fullmatch(name) or _PICKLED.fullmatch(name):
        remedy = f"put it into a folder with its {CONFIG} and its tokenizer's files"
        return Unfit("alone", f"{name} lies alone, and a model is a folder", remedy)
    return Unfit("stray", f"{name} is a file, and a model is a folder", "nothing, or move it away")


def unfit_folder(names: Collection[str]) -> Unfit | None:
    """Return why a folder of these files is no model; None where it may be one."""
    weights = weights_among(names)
    if CONFIG in names and weights:
        return _missing_shards(weights) or _no_tokenizer(names)
    by_kind = {
        kind: first
        for kind in (_GGUF, _UNFINISHED, _SAFETENSORS, _PICKLED)
        if (first := next((name for name in sorted(names) if kind.fullmatch(name)), None))
    }
    if not weights and (found := ADAPTERS & set(names)):
        remedy = "move it into its model's folder as adapters/NAME, and ask for MODEL:NAME"
        why = f"a LoRA adapter alone ({min(found)}), which is applied to no model"
        return Unfit("adapter_alone", why, remedy)
    if not weights and _GGUF in by_kind:
        return _gguf(by_kind[_GGUF])
    if _UNFINISHED in by_kind:
        return _unfinished(by_kind[_UNFINISHED])
    if "model_index.json" in names:
        why = "an image model (model_index.json is of diffusers)"
        return Unfit("image_model", why, "shoal runs language models alone")
    if weights:
        why = f"weights without a {CONFIG}"
        return Unfit("no_config", why, "copy it from where the model came from")
    if _SAFETENSORS in by_kind:
        why = f"{by_kind[_SAFETENSORS]} is not named model*.safetensors, as MLX's weights are"
        remedy = f"fetch the model as MLX or transformers have it, or {CONVERT}"
        return Unfit("other_weights", why, remedy)
    if _PICKLED in by_kind:
        why = f"{by_kind[_PICKLED]} is not safetensors, and shoal loads nothing else"
        remedy = (
            "fetch it as safetensors; where there is none, let transformers write it: "
            "`AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER)`"
        )
        return Unfit("pickled", why, remedy)
    if CONFIG in names:
        why = f"a {CONFIG} without weights"
        return Unfit("no_weights", why, "copy its model*.safetensors beside it")
    remedy = "put a model's files into it, or remove it"
    if not names:
        return Unfit("empty", "an empty folder", remedy)
    return Unfit("nothing_known", f"neither a {CONFIG} nor weights in it", remedy)


def unfit_family(config: Mapping[str, Any], version: str) -> Unfit:
    """Return why a model of a family that mlx-lm of this version lacks is not taken."""
    family = str(config.get("model_type"))
    reads = next((what for key, what in _SENSES.items() if key in config), "")
    if reads or _MEDIA.search(family):
        why = f"{family} is of models that read or make {reads or 'images or sound'}"
        why += f", and mlx-lm {version} has no text model of that family"
        return Unfit("media", why, "take a language model; shoal runs those alone")
    why = f"mlx-lm {version}, which is installed here, does not know the family {family!r}"
    remedy = "take a model of a family that it knows, or a later shoal"
    return Unfit("unknown_family", why, remedy)


def dead_links(dead: Mapping[str, str]) -> Unfit | None:
    """Return why a folder of these links, which lead to nothing, is not taken; None without any."""
    if not dead:
        return None
    name, target = min(dead.items())
    more = f", and so do {len(dead) - 1} more" if len(dead) > 1 else ""
    why = f"{name} is a link to {target}, where nothing is{more}"
    return Unfit("dead_link", why, "mount or fetch what it leads to, or put the file itself there")


def shards_lacking(index: str, lacking: Collection[str]) -> Unfit:
    """Return why a folder is not taken whose index names files that are not there."""
    more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    why = f"{index} names {min(lacking)}{more}, missing here"
    return Unfit("missing_shards", why, "fetch the rest of the model")


def still_written(size_bytes: int) -> Unfit:
    """Return why a folder is not taken yet whose weights have changed just now."""
    why = f"its files are still being written ({size_bytes / 1e6:,.0f} MB so far)"
    return Unfit("still_written", why, "wait: it is taken once they are whole and stay as they are")


def pulled_in_part(model: str, have_bytes: int, size_bytes: int) -> Unfit:
    """Return why a model is not taken whose pull did not end."""
    why = f"its pull did not end: {have_bytes / 1e6:,.1f} of {size_bytes / 1e6:,.1f} MB came"
    remedy = f"`shoal pull {model}` goes on with it, `shoal rm {model}` takes it away"
    return Unfit("pulled_in_part", why, remedy)


def being_pulled() -> Unfit:
    """Return why a model is not taken yet that is being pulled."""
    return Unfit("being_pulled", "it is being pulled", "wait: it is taken once it is whole")


def goes_by(name: str, model: str) -> Unfit:
    """Return what is said of a model whose folder has a name that no request can say."""
    why = f"no request could say '{name}', so the model goes by {model}"
    return Unfit("odd_name", why, "nothing, or rename the folder: a to z, digits, '.', '_' and '-'")


def too_many(most: int) -> Unfit:
    """Return what is said of a folder that has more in it than is looked at."""
    why = f"more than {most:,} folders and files lie here, and the rest is not looked at"
    return Unfit("too_many", why, "move away what is no model")


def too_deep(inner: str) -> Unfit:
    """Return why a model that lies two folders down is not found; `inner` is the lower one."""
    return Unfit(
        "too_deep",
        f"{inner} in it looks like a model, but lies too deep",
        "move it up: models are <name> or <owner>/<name>",
    )


def name_taken(by: str) -> Unfit:
    """Return why a second model of a name is not taken; `by` is the first one's folder."""
    why = f"{by} has that name and comes first"
    return Unfit("same_name", why, "rename one of the two folders")


def no_folder() -> Unfit:
    """Return why a link that leads nowhere is no model."""
    return Unfit("dead_link", "a link that leads nowhere", "mount what it leads to, or remove it")


def unreadable(error: Exception) -> Unfit:
    """Return why a folder whose files cannot be read is not taken."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    remedy = "let the user that runs shoal read it"
    return Unfit("unreadable", f"it cannot be read: {said or type(error).__name__}", remedy)


def adapter_beside(names: Iterable[str]) -> Unfit | None:
    """Return why a model is not taken whose folder holds an adapter's files beside the weights:
    requests for it would get the model without."""
    found = sorted(ADAPTERS.intersection(names))
    if not found:
        return None
    remedy = "move them into adapters/NAME in that folder, and ask for MODEL:NAME; or fuse them"
    why = f"{', '.join(found)} beside the weights would not be applied"
    return Unfit("adapter_beside", why, remedy)


def bad_adapter(why: str) -> Unfit:
    """Return why an adapter cannot be applied, and the way out."""
    remedy = (
        "mend it or take it away, or fuse it: `mlx_lm.fuse --model MODEL --adapter-path FOLDER`"
    )
    return Unfit("bad_adapter", why, remedy)


def said_of(name: str, path: str, unfit: Unfit, *, taken: bool = False) -> PassedOver:
    """Return what is told of something that is not taken, or not wholly, within its bounds."""
    return PassedOver(
        name=printable(name, NAME_CHARACTERS),
        path=printable(path, PATH_CHARACTERS),
        why=printable(unfit.why, WORDS_CHARACTERS),
        remedy=printable(unfit.remedy, WORDS_CHARACTERS),
        taken=taken,
        reason=unfit.reason,
        aliases=unfit.aliases,
    )


def first_of(said: Iterable[PassedOver], most: int, characters: int) -> tuple[PassedOver, ...]:
    """Return the first `most` of what is said, and no more than have `characters` together; what
    looks like a model comes before files that lie about."""
    found: list[PassedOver] = []
    for one in sorted(said, key=lambda one: one.reason in ("stray", "packed")):
        characters -= len(one.name) + len(one.path) + len(one.why) + len(one.remedy)
        characters -= sum(map(len, one.aliases))
        if len(found) >= most or characters < 0:
            break
        found.append(one)
    return tuple(found)


def printable(text: str, most: int = 200) -> str:
    """Return a text as it may be shown and sent: no control characters, no broken text, and with
    its middle left out where it is longer than `most`."""
    plain = "".join(char if char.isprintable() else "?" for char in text[: 4 * most])
    if len(text) <= most:
        return plain
    half = (most - 3) // 2
    end = "".join(char if char.isprintable() else "?" for char in text[-half:])
    return f"{plain[:half]}...{end}"


def _gguf(name: str) -> Unfit:
    remedy = (
        f"runners load MLX's safetensors: fetch the model from mlx-community, or convert what the "
        f"GGUF was made from: {CONVERT}"
    )
    return Unfit("gguf", f"{name} is GGUF, llama.cpp's format", remedy)


def _unfinished(name: str) -> Unfit:
    why = f"{name} is a download that did not end"
    return Unfit("unfinished", why, "let it end, or start it again")


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
            return Unfit("missing_shards", why, "fetch the rest of the model")
    return None


def _no_tokenizer(names: Iterable[str]) -> Unfit | None:
    if any(_TOKENIZER.fullmatch(name) for name in names):
        return None
    remedy = "copy tokenizer.json and tokenizer_config.json from where the model came from"
    return Unfit("no_tokenizer", "weights without a tokenizer", remedy)
