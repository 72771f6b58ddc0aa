# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# (mlx_lm is partially typed)
"""Talks to mlx-lm: what the runner takes of it, imported without Hugging Face's Python libraries.

mlx-lm imports `transformers` and `huggingface_hub` for a few names, most of which are never used
where a model lies on this disk and its tokenizer is read by `runner.text.opening`; both libraries
together cost a second. So while mlx-lm is imported, stand-ins take their place in `sys.modules`,
with exactly the names in `STAND_INS`, and then leave. A stand-in that is used loads its library and
acts as what it stands for. Where mlx-lm takes other names, it is imported in the ordinary way
(decision 0071).

MLX is imported with this module: by the thread that is to own it.
"""

from __future__ import annotations

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
"""What mlx-lm's modules take of the two libraries when they are imported."""
AT_IMPORT = "register"
"""A class of mlx-lm's registers itself with `AutoTokenizer`. With its stand-in that does nothing:
the module which does so is executed again when the library is there."""
_READS_TOKENIZERS = "mlx_lm.tokenizer_utils"
_loading = RLock()


class _StandIn(type):
    """Stands for a class or a function of a library, and loads the library when it is used."""

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
    """Take a class that registers itself."""


def _stood_for(stand_in: _StandIn) -> Any:
    """Return what a stand-in stands for. Raises ImportError."""
    if stand_in.__module__ == "huggingface_hub":
        return import_module(stand_in.__module__).snapshot_download
    load_transformers()
    return getattr(import_module(stand_in.__module__), stand_in.__name__)


def load_transformers() -> ModuleType:
    """Import `transformers` and give mlx-lm's modules what stood-ins stand for. Raises
    ImportError."""
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
    """Have a module's names mean what they would with the library there from the beginning."""
    for name, value in list(names.items()):
        if id(value) in anew:
            names[name] = anew[id(value)]
        elif isinstance(value, _StandIn) and value.__module__ != "huggingface_hub":
            names[name] = _stood_for(value)


@contextmanager
def _stand_ins() -> Generator[None]:
    """Have stand-ins in the place of libraries that are not imported yet."""
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


def _import_light() -> None:
    """Import mlx-lm with stand-ins; with the libraries where it takes other names of them."""
    before = set(sys.modules)
    try:
        with _stand_ins():
            import_module("mlx_lm.utils")
    except ImportError:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "mlx_lm":
                del sys.modules[name]


_import_light()

from mlx_lm import tokenizer_utils, utils  # noqa: E402
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
