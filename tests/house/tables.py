"""What the laws hold the house to, where folders alone cannot say it. Tables and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

DOORED_ROOMS: tuple[str, ...] = (
    "bus.calls",
    "bus.process.installation",
    "bus.models",
    "bus.models.cards",
    "bus.models.gguf",
    "bus.models.kv",
    "bus.models.tasks",
    "bus.survey",
    "bus.translation",
    "bus.wire.kv",
    "bus.wire.calls",
    "bus.switchboard",
    "conf.blas",
    "gateway.access",
    "gateway.control",
    "gateway.control.captures",
    "gateway.control.pulling",
    "gateway.cli.selftest",
    "gateway.cli.selftest.verdicts",
    "gateway.cli.verbs.store.pulling",
    "gateway.view",
    "gateway.view.watch",
    "gateway.dialects.anthropic",
    "gateway.dialects.openai.responses",
    "gateway.dialects.openai.responses.conversations",
    "gateway.http.page",
    "gateway.http.resources.figures",
    "gateway.http.secure",
    "gateway.fetching",
    "gateway.fetching.providers",
    "gateway.fetching.reading",
    "gateway.exchange",
    "gateway.exchange.features",
    "gateway.http.resources.tools",
    "gateway.http.resources.access",
    "gateway.http.resources.jobs",
    "gateway.http.resources.conversations",
    "gateway.requests.tasks",
    "gateway.records",
    "gateway.records.jobs",
    "gateway.records.conversations",
    "gateway.tracing",
    "gateway.tracing.otlp",
    "bus.process.zygote",
    "conf.collectors",
    "master.consensus",
    "master.decisions",
    "master.placement",
    "master.pool",
    "runner.mlx.kv",
    "runner.mlx.sampling",
    "runner.mlx.selftest",
    "runner.schedule",
    "runner.schedule.drafting",
    "runner.schedule.prefixes",
    "runner.text",
    "runner.text.grammar",
    "runner.text.markup",
    "runner.text.shapes",
    "worker.models.files",
)
"""The rooms whose inside others reach only by names in the room's `__init__.__all__`, dotted.

A door is a plain re-export (`from runner.schedule.table import Row`) where the room is entered by
processes that need all of it. Where one name must load without the rest, it is lazy, in the form
of PEP 562; the laws hold its table to be what its imports say, and pyright reads the imports:

    if TYPE_CHECKING:
        from master.consensus.election import Election
    __all__ = ["Election"]
    _HOMES = {"Election": "master.consensus.election"}

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(name)
        return getattr(import_module(_HOMES[name]), name)

A door of a room with rooms names modules (`__all__ = ["cards", "lora"]`). Others then import public
names from such a module, and those of a room by that room's own door.
"""

LOADS: Mapping[str, tuple[str, ...]] = {
    "bus.wire.ids": (),
    "gateway.cli.selftest.verdicts": ("pydantic",),
    "bus.wire.kv": ("pydantic",),
    "bus.models.lora": (),
    "bus.wire.accelerators": ("pydantic",),
    "bus.models.cards": ("pydantic",),
    "bus.models.gguf": ("pydantic",),
    "bus.wire.pool": ("pydantic",),
    "bus.models.tasks": ("pydantic",),
    "shoal --help": ("typer",),
    "bus.wire.messages": ("msgspec", "pydantic"),
    "bus.wire.messages.traces": ("msgspec", "pydantic"),
    "bus.wire.calls": ("pydantic",),
    "bus.hardware": ("pydantic",),
    "bus.translation": ("msgspec", "pydantic"),
    "bus.replica": ("pydantic",),
    "bus.wire": ("msgpack", "msgspec", "pydantic"),
    "gateway.dialects.anthropic": ("msgspec", "orjson", "pydantic"),
    "gateway.dialects.ollama": ("msgspec", "orjson", "pydantic"),
    "gateway.dialects.openai": ("msgspec", "orjson", "pydantic"),
    "gateway.dialects.openai.embeddings": ("msgspec", "orjson", "pydantic"),
    "gateway.dialects.openai.responses": ("msgspec", "orjson", "pydantic"),
    "gateway.dialects.openai.responses.conversations": ("msgspec", "orjson", "pydantic"),
    "gateway.dialects.openai.stored": ("msgspec", "orjson", "pydantic"),
    "gateway.dialects.prompts": ("msgspec", "orjson", "pydantic"),
    "gateway.dialects.reranking": ("msgspec", "orjson", "pydantic"),
    "gateway.fetching.tools": ("psutil", "pydantic"),
    "master.decisions": ("pydantic",),
    "master.decisions.leasing": ("pydantic",),
    "master.decisions.replicating": ("pydantic",),
    "master.decisions.quantizing": ("pydantic",),
    "master.placement": ("pydantic",),
    "master.placement.gpus": ("pydantic",),
    "master.pool": ("pydantic",),
    "runner.text.grammar": ("llguidance", "msgspec", "pydantic"),
    "runner.schedule": ("msgspec", "numpy", "pydantic"),
    "runner.schedule.drafting": ("msgspec", "numpy", "pydantic"),
    "runner.schedule.prefixes": ("msgspec", "numpy", "pydantic"),
    "runner.text.families": ("msgspec", "pydantic"),
    "runner.text.markup": ("msgspec", "pydantic", "tokenizers"),
    "runner.text.shapes": ("msgspec", "pydantic"),
    "conf.collectors": ("pydantic",),
    "conf.tiny": (),
    "gateway.tracing.document": ("msgspec", "pydantic"),
    "worker.pulling.claims": ("pydantic",),
    "gateway.dialects": ("msgspec", "orjson", "pydantic"),
}  # fmt: skip
"""The watched libraries (`loads.WATCHED`) that each row loads, exactly, in order of the alphabet.

A row is a module, a room (all its modules), or what `shoal --help` runs. Every room whose modules
are all pure has a row.
"""
