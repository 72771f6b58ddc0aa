# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (mlx.nn and mlx_lm are partially typed)
"""Talks to MLX and the disk: makes a model of another in fewer bits, by mlx-lm's own rules.

Opened lazily, packed by `quantize_model`, and then read, computed and written one tensor after the
other: in memory are the file that is being written and one tensor. The model grows in a folder of
its own below `.quantizing`, locked while its process lives, and becomes one by a rename, when all
of it is synced. What a process that was killed leaves there is removed by the next look of the
worker.
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
    """Makes `name`, below the folder `models`, of the model in `source`: see `runner.engine.Maker`.
    Raises NotMade where there is nothing to begin with."""

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

    def make(self, told: Callable[[LoadProgress], None], stops: Callable[[], bool]) -> None:
        """Write the model and put it in its place; where `stops`, leave without one."""
        told(LoadProgress("weights", 0, self.total_bytes))
        try:
            with _unfinished_folder(self._models, self._name) as folder:
                if _write_packed(self._packing, folder, told, stops) and not stops():
                    _publish(self._source, self._packing, folder, self._models / self._name)
                    told(LoadProgress("ready", self.total_bytes, self.total_bytes))
        except OSError as error:
            said = f"{self._name} could not be written: {error.strerror or error}"
            raise NotMade(f"{said}; nothing of it was left: make room, and ask again") from error

    def memory(self) -> EngineMemory:
        """Return what it takes now."""
        return EngineMemory(mx.get_active_memory(), 0, 0, mx.get_peak_memory())


@dataclass(frozen=True, slots=True)
class _Packing:
    """A model opened for packing, nothing of it read yet. `files` are the weights of each file to
    be written; `config` is that of the model that is made."""

    config: dict[str, Any]
    files: list[Weights]
    total_bytes: int


def _open_packing(source: Path, order: Quantizing) -> _Packing:
    """Return a model as it will be in fewer bits. Raises NotMade."""
    try:
        module, config = open_model(source)
    except UnloadableModel as error:
        raise NotMade(str(error)) from error
    if "quantization" in config or "quantization_config" in config:
        raise NotMade(f"{order.source} is quantised already; take what it was made from")
    with contextlib.redirect_stdout(io.StringIO()):  # mlx-lm prints how many bits it became
        made, config = quantize_model(module, config, order.group_size, order.bits)
    if not any("Quantized" in type(one).__name__ for one in made.modules()):
        text = f"no layer of {order.source} divides into groups of {order.group_size}"
        raise NotMade(f"{text}; a smaller --group-size may do (32 is the smallest)")
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
    """Yield an empty folder for a model that is being made, which is gone afterwards. Raises
    NotMade where another process makes it."""
    folder = models / UNFINISHED / name.replace("/", "--")
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotMade(f"another process makes {name} in the same folder") from None
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
    """Raise NotMade where the disk has too little room."""
    free = shutil.disk_usage(models).free
    if packing.total_bytes + DISK_MARGIN_BYTES > free:
        raise NotMade(
            f"the disk has {free / 1e9:.2f} GB free; {packing.total_bytes / 1e9:.2f} GB are to be "
            f"written, and {DISK_MARGIN_BYTES / 1e9:.2f} GB stay free: make room"
        )


def _write_packed(
    packing: _Packing, folder: Path, told: Callable[[LoadProgress], None], stops: Callable[[], bool]
) -> bool:
    """Compute and write all weights, dropping them from `packing`; return False where `stops`
    had it end before. Raises OSError."""
    count, done, index = len(packing.files), 0, dict[str, str]()
    for number in range(count):
        weights, packing.files[number] = packing.files[number], {}
        for array in weights.values():
            if stops():
                return False
            mx.eval(array)
            mx.clear_cache()
            done += array.nbytes
            told(LoadProgress("weights", done, packing.total_bytes))
        name = f"model-{number + 1:05}-of-{count:05}.safetensors" if count > 1 else ONE_FILE
        _save(folder / name, weights)
        index |= dict.fromkeys(weights, name)
    said = {"metadata": {"total_size": packing.total_bytes}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(said, indent=1))
    return True


def _publish(source: Path, packing: _Packing, folder: Path, target: Path) -> None:
    """Put the source's other files beside the weights, sync all, and move the folder into its
    place. Raises OSError, NotMade."""
    for path in sorted(source.iterdir()):
        if TAKEN_ALONG.fullmatch(path.name) and path.name not in OF_THE_SOURCE and path.is_file():
            shutil.copyfile(path, folder / path.name)
    save_config(dict(packing.config), folder / "config.json")
    said = {"how": "derived", "sources": [packing.config[MADE_FROM]]}
    (folder / ORIGIN_FILE).write_text(json.dumps(said))
    for path in folder.iterdir():
        _sync(path)
    _sync(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() or (target.exists() and any(target.iterdir())):
        raise NotMade(f"{target} is in the way: move it, or remove it with `shoal rm`")
    folder.replace(target)
    _sync(target.parent)


def _save(path: Path, weights: Weights) -> None:
    """Write a file of weights. Raises OSError: MLX tells a full disk as a RuntimeError."""
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
