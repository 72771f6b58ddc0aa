# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX and the disk: quantises a model by mlx-lm's rules.

mlx-lm's `quantize_model` prepares the quantised model without reading weights. Then each tensor is
read, quantised and written, so memory holds only the current output file and one tensor. The output
is written to a folder below `.quantizing`, which this process locks. When all files are synced, the
folder is renamed to its final place. If this process is killed, the worker's next scan deletes the
folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from bus.wire.ids import ModelId
from bus.wire.messages.weights import (
    DISK_MARGIN_BYTES,
    MADE_FROM,
    ORIGIN_FILE,
    UNFINISHED,
    Quantizing,
)
from runner.engine import EngineMemory, LoadProgress, NotMade
from runner.library import quantize_model, save_config
from runner.mlx.model.load import UnloadableModel, open_model

FILE_BYTES = 1 << 30
ONE_FILE = "model.safetensors"
TAKEN_ALONG = re.compile(r"[^.].*\.(json|jinja|txt|model|tiktoken)")
OF_THE_SOURCE = ("config.json", "model.safetensors.index.json", "card.toml")

Weights = dict[str, mx.array]


class ModelMaker:
    """Quantises the model in the folder `source`, and writes the result as `name` to the folder
    `models`. Implements `runner.engine.Maker`. Raises NotMade if it cannot begin."""

    def __init__(
        self,
        source: Path,
        models: Path,
        name: ModelId,
        order: Quantizing,
        memory_limit_bytes: int,
    ) -> None:
        mx.set_memory_limit(memory_limit_bytes)
        self._source, self._models, self._name = source, models, name
        self._packing = _open_packing(source, order)
        _check_room(models, self._packing)
        self.total_bytes = self._packing.total_bytes

    def make(self, report: Callable[[LoadProgress], None], stops: Callable[[], bool]) -> None:
        """Write the quantised model and move it into place. If `stops` returns true before that,
        leave no model behind."""
        report(LoadProgress("weights", 0, self.total_bytes))
        try:
            with _unfinished_folder(self._models, self._name) as folder:
                if _write_packed(self._packing, folder, report, stops) and not stops():
                    _publish(self._source, self._packing, folder, self._models / self._name)
                    report(LoadProgress("ready", self.total_bytes, self.total_bytes))
        except OSError as error:
            why = f"{self._name} could not be written: {error.strerror or error}"
            raise NotMade(
                f"{why}; its partial files were deleted; free disk space and retry"
            ) from error

    def memory(self) -> EngineMemory:
        return EngineMemory(mx.get_active_memory(), 0, 0, mx.get_peak_memory())


@dataclass(frozen=True, slots=True)
class _Packing:
    """A quantised model whose weights are not computed yet. `files` has the weights of each output
    file; `config` is the configuration of the output."""

    config: dict[str, Any]
    files: list[Weights]
    total_bytes: int


def _open_packing(source: Path, order: Quantizing) -> _Packing:
    """Open the model in `source` and quantise it lazily, without reading weights. Raises NotMade if
    the model cannot be loaded or quantised."""
    try:
        module, config = open_model(source)
    except UnloadableModel as error:
        raise NotMade(str(error)) from error
    if "quantization" in config or "quantization_config" in config:
        raise NotMade(f"{order.source} is already quantised; quantise the model it was made from")
    with contextlib.redirect_stdout(io.StringIO()):  # mlx-lm prints the bits per weight
        made, config = quantize_model(module, config, order.group_size, order.bits)
    if not any("Quantized" in type(layer).__name__ for layer in made.modules()):
        text = f"no layer of {order.source} can be divided into groups of {order.group_size} values"
        raise NotMade(f"{text}; try a smaller --group-size (the minimum is 32)")
    config[MADE_FROM] = order.source
    weights = cast("list[tuple[str, mx.array]]", tree_flatten(made.parameters()))
    files: list[Weights] = []
    free = 0
    for name, array in weights:
        if not files or array.nbytes > free:
            files.append({})
            free = FILE_BYTES
        files[-1][name] = array
        free -= array.nbytes
    return _Packing(config, files, sum(array.nbytes for _, array in weights))


@contextlib.contextmanager
def _unfinished_folder(models: Path, name: ModelId) -> Generator[Path]:
    """Yield an empty folder for the output, and delete it afterwards if it is still there. Raises
    NotMade if another process uses it."""
    folder = models / UNFINISHED / name.replace("/", "--")
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotMade(f"another process is writing {name} to the same folder") from None
        files = folder / "files"
        shutil.rmtree(files, ignore_errors=True)
        files.mkdir()
        try:
            yield files
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _check_room(models: Path, packing: _Packing) -> None:
    """Raise NotMade if the disk has too little free space for the output."""
    free = shutil.disk_usage(models).free
    if packing.total_bytes + DISK_MARGIN_BYTES > free:
        raise NotMade(
            f"not enough disk space: {packing.total_bytes / 1e9:.2f} GB needed, "
            f"{free / 1e9:.2f} GB free, {DISK_MARGIN_BYTES / 1e9:.2f} GB of which "
            "must stay free; free some space"
        )


def _write_packed(
    packing: _Packing,
    folder: Path,
    report: Callable[[LoadProgress], None],
    stops: Callable[[], bool],
) -> bool:
    """Compute and write all weights, and remove them from `packing`. Return False if `stops`
    returned true before the end. Raises OSError."""
    count, done, index = len(packing.files), 0, dict[str, str]()
    for number in range(count):
        weights, packing.files[number] = packing.files[number], {}
        for array in weights.values():
            if stops():
                return False
            mx.eval(array)
            mx.clear_cache()
            done += array.nbytes
            report(LoadProgress("weights", done, packing.total_bytes))
        name = f"model-{number + 1:05}-of-{count:05}.safetensors" if count > 1 else ONE_FILE
        _save(folder / name, weights)
        index |= dict.fromkeys(weights, name)
    contents = {"metadata": {"total_size": packing.total_bytes}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(contents, indent=1))
    return True


def _publish(source: Path, packing: _Packing, folder: Path, target: Path) -> None:
    """Copy the source's other files (such as the tokenizer) into the folder with the weights, sync
    all files, and rename the folder to `target`. Raises OSError, or NotMade if `target` exists."""
    for path in sorted(source.iterdir()):
        if TAKEN_ALONG.fullmatch(path.name) and path.name not in OF_THE_SOURCE and path.is_file():
            shutil.copyfile(path, folder / path.name)
    save_config(dict(packing.config), folder / "config.json")
    origin = {"how": "derived", "sources": [packing.config[MADE_FROM]]}
    (folder / ORIGIN_FILE).write_text(json.dumps(origin))
    for path in folder.iterdir():
        _sync(path)
    _sync(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() or (target.exists() and any(target.iterdir())):
        raise NotMade(f"{target} already exists: move it, or remove it with `shoal rm`")
    folder.replace(target)
    _sync(target.parent)


def _save(path: Path, weights: Weights) -> None:
    """Write a file of weights. Raises OSError, even for a full disk, which MLX reports as
    RuntimeError."""
    try:
        mx.save_safetensors(str(path), weights, {"format": "mlx"})
    except RuntimeError as error:
        raise OSError(f"{path.name} could not be written: {error}") from error


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
