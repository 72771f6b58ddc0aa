# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# (mlx_lm is partially typed)
"""Talks to mlx-lm: imports it without Hugging Face's Python libraries.

mlx-lm imports `transformers` and `huggingface_hub` for a few names, most of them unused if a model
is on this disk and `runner.text.opening` reads its tokenizer. Both libraries together cost a
second. So stand-ins with exactly the names in `STAND_INS` replace them in `sys.modules` while
mlx-lm is imported. A stand-in that is used loads its library and acts as the real object. If mlx-lm
imports other names, it is imported normally (decision 0071).

This module imports MLX, so the thread that owns MLX must import it.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module, reload
from threading import RLock
from types import ModuleType
from typing import Any

STAND_INS = {
    "huggingface_hub": ("snapshot_download",),
    "transformers": ("AutoTokenizer", "PreTrainedTokenizer", "PreTrainedTokenizerFast"),
    "transformers.tokenization_utils_base": ("PreTrainedTokenizerBase",),
}
"""Names that mlx-lm imports from the two libraries."""
AT_IMPORT = "register"
"""The method by which one of mlx-lm's classes registers itself with `AutoTokenizer` on import. A
stand-in's method does nothing; the module is executed again after the library is loaded."""
_READS_TOKENIZERS = "mlx_lm.tokenizer_utils"
_loading = RLock()


class _StandIn(type):
    """Stands for a class or a function of a library, and loads that library when it is used."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == AT_IMPORT:
            return _registered
        return getattr(_stood_for(cls), name)

    def __call__(cls, *args: Any, **named: Any) -> Any:
        return _stood_for(cls)(*args, **named)

    def __instancecheck__(cls, instance: object) -> bool:
        is_there = cls.__module__ in sys.modules
        return is_there and isinstance(instance, _stood_for(cls))


_loaded: set[str] = set()


def _registered(*_args: Any, **_named: Any) -> None:
    """Do nothing; a class of mlx-lm calls this to register itself."""


def _stood_for(stand_in: _StandIn) -> Any:
    """Return the object behind a stand-in. Raises ImportError."""
    if stand_in.__module__ == "huggingface_hub":
        return import_module(stand_in.__module__).snapshot_download
    load_transformers()
    return getattr(import_module(stand_in.__module__), stand_in.__name__)


def load_transformers() -> ModuleType:
    """Import `transformers` and replace the stand-ins in mlx-lm's modules. Raises ImportError."""
    library = import_module("transformers")
    with _loading:
        module = sys.modules.get(_READS_TOKENIZERS)
        if module is None or _READS_TOKENIZERS in _loaded:
            return library
        _loaded.add(_READS_TOKENIZERS)
        if not isinstance(vars(module)["AutoTokenizer"], _StandIn):
            return library
        before = dict(vars(module))
        after = vars(reload(module))
        anew = {id(old): after[name] for name, old in before.items() if after[name] is not old}
        for name, other in list(sys.modules.items()):
            if name.startswith("mlx_lm."):
                _replace(vars(other), anew)
    return library


def _replace(names: dict[str, Any], anew: dict[int, Any]) -> None:
    """Rebind the names of one module of mlx-lm from stand-ins, or from objects of a reloaded
    module, to the current objects."""
    for name, value in list(names.items()):
        if id(value) in anew:
            names[name] = anew[id(value)]
        elif isinstance(value, _StandIn) and value.__module__ != "huggingface_hub":
            names[name] = _stood_for(value)


@contextmanager
def _stand_ins() -> Generator[None]:
    """Within the context, put stand-ins into `sys.modules` for libraries that are not imported
    yet."""
    mine: dict[str, ModuleType] = {}
    for name, taken in STAND_INS.items():
        if name.partition(".")[0] in sys.modules and name.partition(".")[0] not in mine:
            continue
        mine[name] = module = ModuleType(name, "Stands in for a library while mlx-lm is imported.")
        module.__path__ = []
        for each in taken:
            setattr(module, each, _StandIn(each, (), {"__module__": name}))
    sys.modules.update(mine)
    try:
        yield
    finally:
        for name in mine:
            del sys.modules[name]


@contextmanager
def own_limit() -> Generator[None]:
    """Within the context, `setrlimit` with a value above the hard limit sets the hard limit
    instead. When mlx-lm is imported, it requests up to 4096 open files, which would raise an error
    where fewer are allowed."""
    set_limit = resource.setrlimit

    def set_allowed(which: int, limits: tuple[int, int]) -> None:
        try:
            set_limit(which, limits)
        except (ValueError, OSError):
            _, hard = resource.getrlimit(which)
            set_limit(which, (hard, hard))

    resource.setrlimit = set_allowed
    try:
        yield
    finally:
        resource.setrlimit = set_limit


def _import_light() -> None:
    """Import mlx-lm with stand-ins for its two slow libraries. If it imports other names from them,
    import it normally."""
    before = set(sys.modules)
    try:
        with _stand_ins():
            import_module("mlx_lm.utils")
    except ImportError:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "mlx_lm":
                del sys.modules[name]


with own_limit():
    _import_light()
    from mlx_lm import tokenizer_utils, utils

from mlx_lm.models.cache import CacheList, KVCache, make_prompt_cache  # noqa: E402
from mlx_lm.utils import (  # noqa: E402
    MODEL_REMAPPING,
    load_model,
    load_tokenizer,
    maybe_set_recommended_wired_limit,
    quantize_model,
    save_config,
)

model_classes = utils._get_classes
tokenizer_defaults = utils._tokenizer_defaults

__all__ = [
    "MODEL_REMAPPING",
    "CacheList",
    "KVCache",
    "load_model",
    "load_tokenizer",
    "load_transformers",
    "make_prompt_cache",
    "maybe_set_recommended_wired_limit",
    "model_classes",
    "quantize_model",
    "save_config",
    "tokenizer_defaults",
    "tokenizer_utils",
]
