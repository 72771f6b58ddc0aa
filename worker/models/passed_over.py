"""The reasons why an entry of a model folder is not listed as a model, and what to do about it.

Pure: it takes file names and returns texts. All texts for people about unlisted entries are in this
module. A model's folder has `config.json`, a tokenizer, and weights named `model*.safetensors`, as
MLX's loader requires; or one GGUF file or all its parts, for llama-server.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from shlex import quote
from typing import Any, NamedTuple

from bus.models.gguf import is_gguf, lacking_parts, weight_files
from bus.models.tasks import lack_of
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
"""File names by which the output of LoRA training (by mlx-lm or PEFT) is recognised."""
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
"""Families of models for other media than text."""
CONVERT = "`mlx_lm.convert --hf-path OWNER/NAME --mlx-path FOLDER -q`"
"""The command that converts an original model for MLX; the tool is installed with shoal."""


class Unfit(NamedTuple):
    """Why an entry of a model folder is not listed: a code for programs, a sentence with the facts,
    and the remedy. `aliases` are names that it would have had."""

    reason: PassedOverReason
    why: str
    remedy: str
    aliases: tuple[ModelId, ...] = ()


class UnfitModel(ValueError):
    """A folder that looks like a model's but cannot be used; `unfit` says why."""

    def __init__(
        self, reason: PassedOverReason, why: str, remedy: str, aliases: tuple[ModelId, ...] = ()
    ) -> None:
        super().__init__(why)
        self.unfit = Unfit(reason, why, remedy, aliases)


def weights_among(names: Collection[str]) -> list[str]:
    """Return the weight files that would be loaded, in order: the files that MLX's loader reads, or
    a folder's GGUF file or its parts."""
    return list(ggufs_among(names)) or sorted(filter(_WEIGHTS.fullmatch, names))


def ggufs_among(names: Collection[str]) -> tuple[str, ...]:
    """Return the GGUF file, or all its parts in order, of a folder with these files. Return nothing
    if that is not one whole model, or if the folder also has weights for MLX."""
    return () if any(map(_WEIGHTS.fullmatch, names)) else weight_files(names)


def has_weights(names: Iterable[str]) -> bool:
    """Return whether these files include weights in any format."""
    kinds = (_SAFETENSORS, _GGUF, _PICKLED, _UNFINISHED)
    return any(kind.fullmatch(name) for name in names for kind in kinds)


def unfit_file(name: str) -> Unfit:
    """Return the notice about a single file in place of a model's folder."""
    if _GGUF.fullmatch(name):
        return _gguf_alone(name)
    if _UNFINISHED.fullmatch(name):
        return _unfinished(name)
    if _PACKED.fullmatch(name):
        return Unfit(
            "packed",
            f"{name} is packed",
            "unpack the file: a model is a folder",
        )
    if _SAFETENSORS.fullmatch(name) or _PICKLED.fullmatch(name):
        remedy = f"put the file into a folder with the model's {CONFIG} and tokenizer files"
        return Unfit("alone", f"{name} is a single file; a model is a folder", remedy)
    return Unfit(
        "stray", f"{name} is a file; a model is a folder", "ignore this, or move the file elsewhere"
    )


def unfit_folder(names: Collection[str]) -> Unfit | None:
    """Return why a folder with these files is not a model; None if it may be one. This is also the
    reason why a repository with these files cannot be pulled."""
    if ggufs_among(names):
        return None
    weights = sorted(filter(_WEIGHTS.fullmatch, names))
    if CONFIG in names and weights:
        return _missing_shards(weights) or _no_tokenizer(names)
    by_kind = {
        kind: first
        for kind in (_GGUF, _UNFINISHED, _SAFETENSORS, _PICKLED)
        if (first := next((name for name in sorted(names) if kind.fullmatch(name)), None))
    }
    if not weights and (adapter_files := ADAPTERS & set(names)):
        remedy = "move the folder into the model's folder as adapters/NAME, and request MODEL:NAME"
        why = f"a LoRA adapter ({min(adapter_files)}) without its model"
        return Unfit("adapter_alone", why, remedy)
    if not weights and _GGUF in by_kind:
        return _several_ggufs(sorted(filter(_GGUF.fullmatch, names)))
    if _UNFINISHED in by_kind:
        return _unfinished(by_kind[_UNFINISHED])
    if "model_index.json" in names:
        why = "an image model (it has a model_index.json, which diffusers writes)"
        return Unfit("image_model", why, "shoal runs language models only")
    if weights:
        why = f"weights without a {CONFIG}"
        return Unfit("no_config", why, f"copy {CONFIG} from the source of the model")
    if _SAFETENSORS in by_kind:
        why = f"{by_kind[_SAFETENSORS]} is not named model*.safetensors, as MLX requires"
        remedy = f"download the model in the format of MLX or transformers, or {CONVERT}"
        return Unfit("other_weights", why, remedy)
    if _PICKLED in by_kind:
        why = f"{by_kind[_PICKLED]} is not safetensors, the only format that shoal loads"
        remedy = (
            "download the model as safetensors, or convert it with transformers: "
            "`AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER)`"
        )
        return Unfit("pickled", why, remedy)
    if CONFIG in names:
        why = f"a {CONFIG} without weights"
        return Unfit("no_weights", why, "copy the model*.safetensors files into the folder")
    remedy = "put a model's files into the folder, or delete the folder"
    if not names:
        return Unfit("empty", "an empty folder", remedy)
    return Unfit("nothing_known", f"the folder has neither a {CONFIG} nor weights", remedy)


def unfit_family(config: Mapping[str, Any], version: str) -> Unfit:
    """Return why a model is not listed, if the mlx-lm of this `version` does not support the family
    that its `config` names."""
    family = str(config.get("model_type"))
    reads = next((what for key, what in _SENSES.items() if key in config), "")
    if reads or _MEDIA.search(family):
        why = f"{family} models read or make {reads or 'images or sound'}"
        why += f", and mlx-lm {version} has no text model of this family"
        return Unfit("media", why, "use a language model; shoal runs no other models")
    why = f"mlx-lm {version} (installed) does not support the model family {family!r}"
    remedy = "use a model of a supported family, or a later version of shoal"
    return Unfit("unknown_family", why, remedy)


def bad_engines(error: Exception) -> Unfit:
    """Return the notice about an `engines.toml` that cannot be used."""
    remedy = "correct the file; until then the last valid version is in force"
    return Unfit("bad_card", str(error), remedy)


def engine_name_taken(folder: str) -> Unfit:
    """Return the notice about an engine with the name of a model in a folder."""
    why = f"the model in {folder} already has this name"
    return Unfit("same_name", why, "give the engine another name")


def no_environment(name: str) -> Unfit:
    """Return the notice about an engine whose environment of packages does not exist."""
    return Unfit("bad_card", *lack_of(name))


def dead_links(dead: Mapping[str, str]) -> Unfit | None:
    """Return the notice about a folder with these broken links; None if there are none."""
    if not dead:
        return None
    name, target = min(dead.items())
    more = f", and {len(dead) - 1} more links are broken" if len(dead) > 1 else ""
    why = f"{name} is a link to {target}, which does not exist{more}"
    return Unfit(
        "dead_link", why, "mount or download the target, or replace the link with the file"
    )


def shards_lacking(index: str, lacking: Collection[str]) -> Unfit:
    """Return the reason not to list a folder whose index names missing files."""
    more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    why = f"{index} lists {min(lacking)}{more}, missing here"
    return Unfit("missing_shards", why, "download the rest of the model")


def still_written(size_bytes: int) -> Unfit:
    """Return the notice about a folder whose weights have just changed, so that they may be
    incomplete."""
    why = f"the files are still being written ({size_bytes / 1e6:,.0f} MB so far)"
    return Unfit(
        "still_written", why, "wait: shoal loads it when the files are complete and unchanged"
    )


def pulled_in_part(model: str, have_bytes: int, size_bytes: int) -> Unfit:
    """Return why a model with an incomplete pull is not listed."""
    why = f"the download is incomplete: {have_bytes / 1e6:,.1f} of {size_bytes / 1e6:,.1f} MB"
    remedy = f"`shoal pull {model}` resumes it, `shoal rm {model}` deletes it"
    return Unfit("pulled_in_part", why, remedy)


def being_pulled() -> Unfit:
    """Return why a model that is being pulled is not listed yet."""
    return Unfit(
        "being_pulled", "the model is being downloaded", "wait until the download is complete"
    )


def goes_by(name: str, model: str) -> Unfit:
    """Return the notice about a model that has another name in requests, because its folder name is
    no valid model id."""
    why = f"the name '{name}' cannot be used in a request; the model is listed as {model}"
    return Unfit(
        "odd_name", why, "ignore this, or rename the folder; use a to z, digits, '.', '_' and '-'"
    )


def too_many(most: int) -> Unfit:
    """Return the notice about a folder with more entries than are scanned."""
    why = f"more than {most:,} folders and files are here; shoal does not scan the rest"
    return Unfit("too_many", why, "move away files and folders that are not models")


def too_deep(inner: str) -> Unfit:
    """Return the notice about a model that is one folder too deep to be found; `inner` is the
    folder that contains it."""
    return Unfit(
        "too_deep",
        f"{inner} in this folder looks like a model, but is nested too deep",
        "move the model up: models are in <name> or <owner>/<name>",
    )


def name_taken(by: str) -> Unfit:
    """Return the notice about a second model of the same name; `by` is the folder of the first."""
    why = f"{by} has the same name and takes precedence"
    return Unfit("same_name", why, "rename one of the two folders")


def no_folder() -> Unfit:
    """Return the notice about a broken link in place of a model's folder."""
    return Unfit("dead_link", "a broken link", "mount the target of the link, or delete the link")


def unreadable(error: Exception) -> Unfit:
    """Return the notice about a folder whose files cannot be read."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    remedy = "give the user that runs shoal read access"
    return Unfit("unreadable", f"cannot be read: {text or type(error).__name__}", remedy)


def adapter_beside(names: Iterable[str]) -> Unfit | None:
    """Return the reason not to list a model if an adapter's files are beside its weights; None if
    there are none. Requests for such a model would be answered without the adapter."""
    files = sorted(ADAPTERS.intersection(names))
    if not files:
        return None
    remedy = "move the files to adapters/NAME in that folder, and request MODEL:NAME; or fuse them"
    why = f"{', '.join(files)} next to the weights would not be applied"
    return Unfit("adapter_beside", why, remedy)


def bad_adapter(why: str) -> Unfit:
    """Return why an adapter cannot be applied, and the remedy."""
    remedy = "fix, delete or fuse the adapter: `mlx_lm.fuse --model MODEL --adapter-path FOLDER`"
    return Unfit("bad_adapter", why, remedy)


def notice_of(name: str, path: str, unfit: Unfit, *, taken: bool = False) -> PassedOver:
    """Return the notice about an entry that is not listed, or not completely; long texts are
    shortened."""
    return PassedOver(
        name=printable(name, NAME_CHARACTERS),
        path=printable(path, PATH_CHARACTERS),
        why=printable(unfit.why, WORDS_CHARACTERS),
        remedy=printable(unfit.remedy, WORDS_CHARACTERS),
        taken=taken,
        reason=unfit.reason,
        aliases=unfit.aliases,
    )


def first_of(notices: Iterable[PassedOver], most: int, characters: int) -> tuple[PassedOver, ...]:
    """Return the first `most` notices with at most `characters` in total; possible models come
    before stray files."""
    chosen: list[PassedOver] = []
    for notice in sorted(notices, key=lambda notice: notice.reason in ("stray", "packed")):
        characters -= len(notice.name) + len(notice.path) + len(notice.why) + len(notice.remedy)
        characters -= sum(map(len, notice.aliases))
        if len(chosen) >= most or characters < 0:
            break
        chosen.append(notice)
    return tuple(chosen)


def printable(text: str, most: int = 200) -> str:
    """Return a text that is safe to show and send: no control characters, no invalid text, and
    shortened in the middle if it is longer than `most`."""
    plain = "".join(char if char.isprintable() else "?" for char in text[: 4 * most])
    if len(text) <= most:
        return plain
    half = (most - 3) // 2
    end = "".join(char if char.isprintable() else "?" for char in text[-half:])
    return f"{plain[:half]}...{end}"


def _gguf_alone(name: str) -> Unfit:
    file, folder = quote(printable(name)), quote(printable(name).rpartition(".")[0])
    remedy = f"give the file its own folder: `mkdir {folder}; mv {file} {folder}/`"
    why = f"{name} is in llama.cpp's GGUF format, but in no folder of its own"
    return Unfit("gguf", why, remedy)


def _several_ggufs(names: Sequence[str]) -> Unfit:
    """Return why a folder with GGUF files, but not one whole model, is not listed."""
    files = list(filter(is_gguf, names))
    if not files:
        remedy = "download the model as .gguf"
        return Unfit("gguf", f"{names[0]} has llama.cpp's old format, from before GGUF", remedy)
    if why := lacking_parts(files):
        return Unfit("missing_shards", why, "download the rest of the model")
    projectors = [name for name in files if "mmproj" in name.lower()]
    if projectors and weight_files(set(files).difference(projectors)):
        why = f"{projectors[0]} is a projector for images or sound, beside the model's file"
        remedy = "move the projector out of the folder; shoal gives GGUF models text only"
        return Unfit("gguf", why, remedy)
    why = f"{len(files)} GGUF files, the first of them {files[0]}; a model has one"
    return Unfit("gguf", why, "keep one of them, and move each other one into a folder of its own")


def _unfinished(name: str) -> Unfit:
    why = f"{name} is an incomplete download"
    return Unfit("unfinished", why, "let the download finish, or start it again")


def _missing_shards(weights: Iterable[str]) -> Unfit | None:
    """Return which shards are missing, by the counts in the file names of the existing shards; None
    if all exist."""
    here: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for stem, number, count in (m.groups() for m in map(_SHARD.fullmatch, weights) if m):
        here[stem, int(count)].add(int(number))
    for (stem, count), numbers in here.items():
        if (lacking := count - len(numbers)) > 0:
            first = next(number for number in range(1, count + 1) if number not in numbers)
            more = f" and {lacking - 1} more" if lacking > 1 else ""
            why = f"{stem}-{first:05}-of-{count:05}.safetensors{more} is missing"
            return Unfit("missing_shards", why, "download the rest of the model")
    return None


def _no_tokenizer(names: Iterable[str]) -> Unfit | None:
    if any(_TOKENIZER.fullmatch(name) for name in names):
        return None
    remedy = "copy tokenizer.json and tokenizer_config.json from the source of the model"
    return Unfit("no_tokenizer", "weights without a tokenizer", remedy)
