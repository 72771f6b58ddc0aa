"""Derived models: further names for existing models, each with defaults for its requests.

Pure. A derived model has no weights of its own. If a request names a derived model, its `base`
answers, with the defaults, the system prompt and the turns of the derived model. The cluster's
state has all derived models, so every node knows them, and their number and size are limited.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from bus.wire.ids import ModelId
from bus.wire.messages.requests import Sampling
from bus.wire.messages.wire import Message

MAX_DERIVED = 256
"""Maximum derived models of a cluster."""
MAX_DERIVED_BYTES = 64 << 10
"""Maximum size of one derived model, as JSON."""
MAX_ALL_DERIVED_BYTES = 1 << 20
"""Maximum size of all derived models; the state is written and compared as a whole."""


class DerivedTurn(Message):
    """A turn of a derived model, which is put before the turns of each conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class DerivedModel(Message):
    """A derived model: its name, and the defaults of its requests.

    `base` is the model that answers. `parent` is the name that this one was made from; empty for a
    mere copy. `adapter`: the base's adapter that its requests use; empty: none. A `template` in
    Go's language comes from an earlier build; its requests are refused. Only the fields of
    `sampling` that `sampled` names count. `parameters`, for display, are the original ones in the
    terms of the API that defined the model. `license` is shown instead of the base's, if set.
    `thinking` applies to requests that do not set it; None: as the base does. `priority` applies to
    requests that do not set it; None: the normal priority. `made_at_s`: seconds since 1970.
    """

    name: ModelId
    base: ModelId
    parent: str = ""
    system: str = ""
    template: str = ""
    turns: tuple[DerivedTurn, ...] = ()
    sampling: Sampling = Sampling()
    sampled: tuple[str, ...] = ()
    max_tokens: int | None = Field(default=None, ge=1)
    stop: tuple[str, ...] = ()
    thinking: bool | None = None
    parameters: dict[str, Any] = {}
    license: str = ""
    adapter: str = ""
    priority: int | None = Field(default=None, ge=0)
    made_at_s: float = 0.0

    @property
    def size_bytes(self) -> int:
        """Return the size of this model's JSON form, in bytes."""
        return len(self.model_dump_json().encode(errors="replace"))


def plain_name(name: str) -> str:
    """Return a model's name without the parts that Ollama clients may add and that mean nothing to
    shoal."""
    plain = name.removesuffix(":latest")
    for before in ("registry.ollama.ai/", "library/", "hf.co/", "huggingface.co/"):
        plain = plain.removeprefix(before)
    return plain


def derived_named(name: str, derived: Mapping[str, DerivedModel]) -> DerivedModel | None:
    """Return the derived model of that name; None if there is none. Upper and lower case may differ
    if only one model's name then matches."""
    plain = plain_name(name)
    if plain in derived:
        return derived[plain]
    folded = plain.casefold()
    alike = [model for other, model in derived.items() if other.casefold() == folded]
    return alike[0] if len(alike) == 1 else None
