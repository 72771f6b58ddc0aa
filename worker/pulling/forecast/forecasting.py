"""Talks to a hub and the disk: reads the configuration of a listed model, and forecasts its pull.
Reads no weights.

An unknown fact is noted in the forecast and is not an error, because the pull itself will find it
out.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from bus.models.cards import Notes
from bus.models.embedding_models import embedding_model
from bus.models.gguf import BadGguf, gguf_facts, read_header
from bus.wire.cards import ModelCard
from bus.wire.kv import KvKind
from bus.wire.messages.readings import PullForecast
from worker.models.files import installed_families
from worker.models.model_card import gguf_card
from worker.models.passed_over import CONFIG, weights_among
from worker.pulling.fetching.files import PullFiles
from worker.pulling.fetching.partial import pieces_here
from worker.pulling.forecast.listed_card import listed_card, why_no_speed
from worker.pulling.listing import HubFile, HubListing, PullFailed

MAX_CONFIG_BYTES = 16 << 20

ReadFile = Callable[[HubFile], bytes]
"""Returns the whole content of a small file in the listing. Raises PullFailed."""
OpenFile = Callable[[HubFile], BinaryIO]
"""Returns a stream that reads a file from its beginning. Reading raises PullFailed."""


@dataclass(frozen=True, slots=True)
class Shelving:
    """How the pulling node stores and loads models: the folder, whether floating-point weights are
    cast to 32 bits, and the default format of the KV cache."""

    models: Path
    float32: bool
    kv: KvKind


def forecast_of(listing: HubListing, read: ReadFile, shelving: Shelving) -> PullForecast:
    """Return the forecast of a listing. Raises OSError."""
    card, why, no_speed = None, "", ""
    try:
        card, no_speed = _card(listing, read, shelving)
    except PullFailed as failure:
        why = failure.message
    except KeyError as error:
        why = f"the model's {CONFIG} has no {error.args[0]}"
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        why = f"the model's {CONFIG} cannot be read as that of a language model: {error}"
    return _forecast(listing, shelving, card, why, no_speed)


def gguf_forecast_of(listing: HubListing, open_file: OpenFile, shelving: Shelving) -> PullForecast:
    """Return the forecast of a GGUF model, from the headers of its files, with exact sizes. Raises
    PullFailed if its header says that shoal cannot run it; OSError."""
    files, card, why = listing.ggufs, None, ""
    try:
        headers = [read_header(open_file(file), file.size_bytes) for file in files]
        card, _ = gguf_card(
            listing.model,
            gguf_facts(*headers),
            path=str(shelving.models / listing.model),
            notes=Notes(),
            size_bytes=sum(file.size_bytes for file in files),
            digest="",
            modified_at_s=0,
            has_adapters=False,
        )
    except BadGguf as error:
        text = f"{listing.model} cannot be run here: {files[0].path}: {error}"
        raise PullFailed("unfit", text) from error
    except PullFailed as failure:
        why = failure.message
    return _forecast(listing, shelving, card, why, "")


def _forecast(
    listing: HubListing, shelving: Shelving, card: ModelCard | None, why: str, no_speed: str
) -> PullForecast:
    have_bytes = PullFiles(listing, pieces_here(shelving.models, listing)).done_bytes
    return PullForecast(
        card=card,
        why=why,
        lacking_bytes=listing.total_bytes - have_bytes,
        disk_free_bytes=shutil.disk_usage(shelving.models).free,
        no_speed=no_speed,
    )


def _card(listing: HubListing, read: ReadFile, shelving: Shelving) -> tuple[ModelCard, str]:
    """Return the card, and the reason if it cannot predict a speed ("" if it can). Raises
    PullFailed, and the errors of `listed_card`."""
    files = {listed.path: listed for listed in listing.files}

    def read_json(name: str) -> object:
        """Return the content of a JSON file of the listing; None if there is none."""
        file = files.get(name)
        if file is None:
            return None
        if file.size_bytes > MAX_CONFIG_BYTES:
            raise ValueError(f"{name} is larger than {MAX_CONFIG_BYTES >> 20} MiB")
        return json.loads(read(file))

    content = read_json(CONFIG)
    if content is None:
        raise PullFailed("unfit", f"{CONFIG} is missing")
    if not isinstance(content, dict):
        raise ValueError(f"{CONFIG} is not a JSON object")
    config = cast(dict[str, Any], content)
    embeds = embedding_model(config, read_json)
    families = installed_families()
    strange = families.unfit(config) if families is not None and embeds is None else None
    if strange is not None:
        raise PullFailed("unfit", strange.why)
    weights = set(weights_among([name for name in files if "/" not in name]))
    sizes = [file.size_bytes for path, file in files.items() if path in weights]
    card = listed_card(
        listing.model,
        config,
        sizes,
        path=str(shelving.models / listing.model),
        float32=shelving.float32,
        kv=shelving.kv,
        embeds=embeds,
    )
    return card, why_no_speed(config)
