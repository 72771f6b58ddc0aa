"""The files of a LoRA adapter: the changed layers, their matrices and the scale.

Pure: the caller reads the disk. An adapter adds `scale * (x A) B` to the output of linear layers.
mlx-lm stores A as (in, rank) and B as (rank, out); PEFT stores both transposed. All other changes
(DoRA, whole layers, biases, embeddings, experts) are refused, because without them the model would
differ from the trained one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

FOLDER = "adapters"
"""The adapters of a model are in `<model's folder>/adapters/<name>/`."""
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILES = ("adapters.safetensors", "adapter_model.safetensors")
"""The weights of an adapter, by mlx-lm and by PEFT."""
MAX_ADAPTERS = 16
"""Maximum adapters of one model; all are in memory while it is loaded."""
MAX_RANK = 256
MOST_CHARACTERS = 300
"""Maximum characters of an error's text, which may quote a file."""
MAX_CONFIG_BYTES = 1 << 20
MAX_HEADER_BYTES = 16 << 20
TYPES: Mapping[str, int] = {"F32": 4, "F16": 2, "BF16": 2}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MLX = re.compile(r"(.+)\.lora_(a|b)")
_PEFT = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(A|B)(?:\.[A-Za-z0-9_]+)?\.weight")
_OTHER_START = re.compile(r"pissa|olora|corda|loftq", re.I)
_HEADS = ("embed", "wte", "wpe", "lm_head", "tok_embeddings", "word_embeddings")


class BadAdapter(ValueError):
    """An adapter that can't be applied. The text says why, for the user who added it."""

    def __init__(self, why: str) -> None:
        super().__init__(why[:MOST_CHARACTERS])


@dataclass(frozen=True, slots=True)
class AdapterTensor:
    """One tensor of an adapter's file."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """The two matrices of one layer by tensor name, their rank, and the input and output widths of
    their product."""

    a: str
    b: str
    rank: int
    width_in: int
    width_out: int


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An adapter: its matrices by layer path, and the scale of their product. `transposed`: A is
    stored as (rank, in), B as (out, rank)."""

    pairs: Mapping[str, Pair]
    scale: float
    transposed: bool
    value_bytes: int

    @property
    def rank(self) -> int:
        """Return the largest rank of the adapter's layers."""
        return max(pair.rank for pair in self.pairs.values())


def is_adapter_name(name: str) -> bool:
    """Return whether `name` is a valid name of an adapter. Requests name adapters as `MODEL:NAME`;
    `latest` is no adapter, because `MODEL:latest` means the model itself."""
    return _NAME.fullmatch(name) is not None and ".." not in name and name != "latest"


def no_such_adapter(model: str, name: str, names: Iterable[str]) -> str:
    """Return the message for a client that names an adapter that `model` does not have."""
    there = ", ".join(sorted(names))
    return f"{model} has no adapter {name!r}" + (f"; it has {there}" if there else "")


def config_in(data: bytes) -> object:
    """Return the content of a `CONFIG_FILE`. Raises BadAdapter if it is too large or not JSON."""
    if len(data) > MAX_CONFIG_BYTES:
        raise BadAdapter(f"{CONFIG_FILE} is too large; the limit is {MAX_CONFIG_BYTES >> 20} MiB")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadAdapter(f"{CONFIG_FILE} cannot be parsed: {error}") from error


def shapes_in(head: bytes, size_bytes: int) -> dict[str, AdapterTensor]:
    """Return the type and shape of each tensor of a safetensors file, by the tensor's name. `head`
    is the file's beginning: the length and the whole header. `size_bytes` is the file's size.
    Raises BadAdapter for another kind of file or a truncated one."""
    length = int.from_bytes(head[:8], "little")
    if len(head) < 8 or length > MAX_HEADER_BYTES or 8 + length > size_bytes:
        raise BadAdapter("the adapter's weights are not a safetensors file, or are truncated")
    try:
        entries = cast(dict[str, Any], json.loads(head[8 : 8 + length]))
        tensors: dict[str, AdapterTensor] = {}
        for name, entry in entries.items():
            if name == "__metadata__":
                continue
            first, last = map(int, entry["data_offsets"])
            tensor = AdapterTensor(str(entry["dtype"]), tuple(int(side) for side in entry["shape"]))
            width = TYPES.get(tensor.dtype)
            if width is not None and last - first != width * math.prod(tensor.shape):
                raise BadAdapter(f"the bytes of {name} do not match its shape")
            if not 0 <= first <= last <= size_bytes - 8 - length:
                raise BadAdapter("the adapter's weights are truncated")
            tensors[name] = tensor
    except BadAdapter:
        raise
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise BadAdapter("the adapter's weights are not a safetensors file") from error
    return tensors


def adapter_files(config: object, tensors: Mapping[str, AdapterTensor]) -> AdapterFiles:
    """Return the adapter with this configuration and these tensors. Raises BadAdapter with the
    reason if it can't be applied."""
    if not isinstance(config, dict):
        raise BadAdapter(f"{CONFIG_FILE} is not a JSON object")
    fields = cast(dict[str, Any], config)
    is_peft = "peft_type" in fields
    rank, scale = _of_peft(fields) if is_peft else _of_mlx(fields)
    if not (math.isfinite(scale) and abs(scale) <= 1e6):
        raise BadAdapter(f"the scale {scale:g} is invalid")
    pairs = _pairs(tensors, _PEFT if is_peft else _MLX, transposed=is_peft)
    for path, pair in pairs.items():
        if pair.rank != rank:
            raise BadAdapter(f"{path} has rank {pair.rank}, but {CONFIG_FILE} says {rank}")
    widths = {TYPES[tensors[name].dtype] for pair in pairs.values() for name in (pair.a, pair.b)}
    return AdapterFiles(pairs, scale, is_peft, max(widths))


def stacked_bytes(adapters: Iterable[AdapterFiles], *, float32: bool) -> dict[str, int]:
    """Return the memory of these adapters of one model, by layer. The matrices of a layer are
    stacked: one for each adapter and one of zeros, all of the largest rank."""
    files = list(adapters)
    sizes: dict[str, int] = {}
    for path in sorted({path for adapter in files for path in adapter.pairs}):
        here = [(adapter, adapter.pairs[path]) for adapter in files if path in adapter.pairs]
        width = 4 if float32 else max(adapter.value_bytes for adapter, _ in here)
        rank = max(pair.rank for _, pair in here)
        sides = here[0][1].width_in + here[0][1].width_out
        sizes[path] = (len(files) + 1) * rank * sides * width
    return sizes


def _of_mlx(fields: Mapping[str, Any]) -> tuple[int, float]:
    kind = fields.get("fine_tune_type", "lora")
    if kind != "lora":
        raise BadAdapter(
            f"fine_tune_type {kind!r} is not supported, only 'lora'; fuse the adapter with its "
            "model"
        )
    settings = fields.get("lora_parameters")
    if not isinstance(settings, dict):
        raise BadAdapter(f"{CONFIG_FILE} has neither lora_parameters nor peft_type")
    numbers = cast(dict[str, Any], settings)
    return _rank(numbers.get("rank"), "lora_parameters.rank"), _number(
        numbers.get("scale"), "lora_parameters.scale"
    )


def _of_peft(fields: Mapping[str, Any]) -> tuple[int, float]:
    if str(fields["peft_type"]).upper() != "LORA":
        raise BadAdapter(f"peft_type {fields['peft_type']} is not supported, only LORA")
    for name, why in (
        ("use_dora", "DoRA is not supported"),
        ("use_qalora", "QALoRA is not supported"),
        ("modules_to_save", "fully trained layers are not supported"),
        ("trainable_token_indices", "trained embeddings are not supported"),
        ("target_parameters", "adapted experts and parameters are not supported"),
        ("lora_bias", "biases are not supported"),
        ("fan_in_fan_out", "transposed layers are not supported"),
        ("rank_pattern", "different ranks per layer are not supported"),
        ("alpha_pattern", "different alphas per layer are not supported"),
        ("layer_replication", "replicated layers are not supported"),
        ("alora_invocation_tokens", "activated LoRA is not supported"),
    ):
        if fields.get(name):
            raise BadAdapter(f"{name}: {why}; fuse the adapter with its model")
    if fields.get("bias") not in (None, "none"):
        raise BadAdapter(
            f"bias {fields['bias']!r}: biases are not supported; fuse the adapter with its model"
        )
    start = fields.get("init_lora_weights")
    if isinstance(start, str) and _OTHER_START.match(start):
        raise BadAdapter(
            f"init_lora_weights {start!r} changes the base model; fuse the adapter with that model"
        )
    rank = _rank(fields.get("r"), "r")
    alpha = _number(fields.get("lora_alpha"), "lora_alpha")
    return rank, alpha / (math.sqrt(rank) if fields.get("use_rslora") else rank)


def _pairs(
    tensors: Mapping[str, AdapterTensor], names: re.Pattern[str], *, transposed: bool
) -> dict[str, Pair]:
    halves: dict[str, dict[str, str]] = {}
    for name, tensor in tensors.items():
        match = names.fullmatch(name)
        if match is None:
            raise BadAdapter(f"the adapter contains {name[:120]!r}, which is not part of a LoRA")
        path, side = match[1], match[2].lower()
        if path.rpartition(".")[2].startswith(_HEADS):
            raise BadAdapter(
                f"the adapter changes {path}; shoal cannot adapt embeddings or the "
                "output projection"
            )
        if tensor.dtype not in TYPES:
            raise BadAdapter(
                f"{name} has type {tensor.dtype}; only F32, F16 and BF16 are supported"
            )
        if len(tensor.shape) != 2:
            raise BadAdapter(
                f"{name} has {len(tensor.shape)} dimensions; adapters of experts are not supported"
            )
        if side in halves.setdefault(path, {}):
            raise BadAdapter(f"{path} is adapted twice")
        halves[path][side] = name
    if not halves:
        raise BadAdapter("the adapter's weights are empty")
    return {path: _pair(path, halves[path], tensors, transposed) for path in sorted(halves)}


def _pair(
    path: str, half: Mapping[str, str], tensors: Mapping[str, AdapterTensor], transposed: bool
) -> Pair:
    if set(half) != {"a", "b"}:
        raise BadAdapter(f"{path} has only one of its two matrices")
    a, b = tensors[half["a"]].shape, tensors[half["b"]].shape
    if transposed:
        a, b = a[::-1], b[::-1]
    if a[1] != b[0]:
        raise BadAdapter(f"the shapes of the matrices of {path} do not match: {a} and {b}")
    return Pair(half["a"], half["b"], a[1], a[0], b[1])


def _rank(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MAX_RANK:
        raise BadAdapter(f"{name} is {value!r}; the range is 1 to {MAX_RANK}")
    return value


def _number(value: object, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadAdapter(f"{name} is {value!r}, which is not a number")
    try:
        return float(value)
    except OverflowError as error:
        raise BadAdapter(f"{name} is too large") from error
