"""Renders models as Anthropic's clients list them: one model, or a page of models.

Pure. Unknown properties of a model are omitted, never invented.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from bus.wire.errors import BadRequest
from gateway.dialects.anthropic.answers import AnthropicModel, AnthropicModels
from gateway.dialects.api_table import ModelListing
from gateway.dialects.body import bad_field
from gateway.dialects.encode import json_bytes

PAGE, MOST = 20, 1000
"""Models per page: by default, and at most."""


def render_models(listings: Sequence[ModelListing], query: Mapping[str, str]) -> bytes:
    """Return a page of the models, in order: the first page, the page after the id `after_id`, or
    the page before the id `before_id`.

    Raises BadRequest naming the field of the query.
    """
    limit = _limit_of(query.get("limit", str(PAGE)))
    after, before = query.get("after_id"), query.get("before_id")
    if after is not None and before is not None:
        raise bad_field("before_id", "cannot be combined with after_id")
    ids = [listing.id for listing in listings]
    if before is not None:
        end = _place(ids, "before_id", before)
        first = max(0, end - limit)
        page, has_more = listings[first:end], first > 0
    else:
        first = 0 if after is None else _place(ids, "after_id", after) + 1
        page, has_more = listings[first : first + limit], first + limit < len(ids)
    models: AnthropicModels = {
        "data": [model_object(listing) for listing in page],
        "has_more": has_more,
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
    }
    return json_bytes(models)


def render_model(listing: ModelListing) -> bytes:
    """Return a `model` object as JSON."""
    return json_bytes(model_object(listing))


def model_object(listing: ModelListing) -> AnthropicModel:
    """Return a model. If its instances have different limits, the smallest limit counts, since any
    instance may answer."""
    smallest = min((item.context_tokens for item in listing.loaded), default=listing.context_tokens)
    created = datetime.fromtimestamp(int(listing.modified_at_s), UTC)
    model: AnthropicModel = {
        "type": "model",
        "id": listing.id,
        "display_name": listing.id,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
    }
    if smallest:
        # a prompt leaves room for at least one token of the answer, and the answer for the prompt
        model["max_input_tokens"] = model["max_tokens"] = smallest - 1
    return model


def _limit_of(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= MOST):
        raise bad_field("limit", f"must be a whole number from 1 to {MOST}")
    return int(text)


def _place(ids: Sequence[str], field: str, wanted: str) -> int:
    try:
        return ids.index(wanted)
    except ValueError:
        raise BadRequest(f"{field}: no model '{wanted[:80]}'", field=field) from None
