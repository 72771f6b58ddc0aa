"""Derived models: further names for models that are here, each with what its requests leave unsaid.

Pure. A derived model has no weights of its own: a request that names it is one for its `base`, with
the defaults, the system prompt and the turns that it was made with. All nodes know all of them, for
they are in the cluster's state, and therefore bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from bus.wire.ids import ModelId
from bus.wire.messages.requests import Sampling
from bus.wire.messages.wire import Message

MAX_DERIVED = 256
"""Derived models of a cluster."""
MAX_DERIVED_BYTES = 64 << 10
"""What one of them may hold, as JSON."""
MAX_ALL_DERIVED_BYTES = 1 << 20
"""What all of them may hold: the state is written and compared whole."""


class DerivedTurn(Message):
    """A turn that stands before those of each conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class DerivedModel(Message):
    """A name, and what a request for it gets where it does not say it itself.

    `base` is the model that answers; `parent` the name that this one was made from, empty for a
    mere copy. `adapter` names the one of the base's adapters that its requests are for; empty:
    none. A `template` in Go's language is of an earlier build, and its requests are refused. Of
    `sampling` only the fields count that `sampled` names. `parameters` are those that
    it was made with, in the words of the API that made it, to be shown. `license` is shown in the
    place of the base's, where there is one. `thinking` is whether to think where a
    conversation does not say; None: the base's own way. `priority` is that of requests that name
    none; None: the usual one. `made_at_s`: seconds since 1970.
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
        """Return how much it holds, as JSON."""
        return len(self.model_dump_json().encode(errors="replace"))


def plain_name(name: str) -> str:
    """Return a model's name without what clients of Ollama's may add to it, which says nothing."""
    plain = name.removesuffix(":latest")
    for before in ("registry.ollama.ai/", "library/"):
        plain = plain.removeprefix(before)
    return plain


def derived_named(name: str, derived: Mapping[str, DerivedModel]) -> DerivedModel | None:
    """Return the derived model of that name, in other letters if need be, where one alone has them;
    None for no such one."""
    plain = plain_name(name)
    if plain in derived:
        return derived[plain]
    folded = plain.casefold()
    alike = [one for known, one in derived.items() if known.casefold() == folded]
    return alike[0] if len(alike) == 1 else None
