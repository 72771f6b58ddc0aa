"""Labels of a stored chat completion. Its client sets the labels and may change them.

Pure. As in OpenAI's API, a completion has at most 16 labels, with short names and texts.
"""

from __future__ import annotations

from typing import Any, cast

from gateway.dialects.body import Closed, bad_field, read_body
from gateway.dialects.dialect import Limits
from gateway.dialects.encode import json_bytes

MOST_LABELS, LONGEST_NAME, LONGEST_TEXT = 16, 64, 512


class StoredLabelsBody(Closed):
    """The body of `POST /v1/chat/completions/{id}`: it replaces all labels."""

    metadata: dict[str, str]


def read_labels(body: bytes, limits: Limits) -> bytes:
    """Return a body's labels as a JSON object. Raises BadRequest."""
    parsed_body, _ = read_body(StoredLabelsBody, body, limits)
    return labels_of(parsed_body.metadata)


def labels_of(metadata: Any) -> bytes:
    """Return the labels in a body's `metadata` as a JSON object. Raises BadRequest if there are too
    many labels, or if a label is invalid or too long."""
    if not isinstance(metadata, dict):
        raise bad_field("metadata", "must be an object")
    labels = cast(dict[str, Any], metadata)
    if len(labels) > MOST_LABELS:
        raise bad_field("metadata", f"too many labels; the limit is {MOST_LABELS}")
    for name, text in labels.items():
        field = f"metadata.{name[:LONGEST_NAME]}"
        if len(name) > LONGEST_NAME:
            raise bad_field(field, f"a label's name has at most {LONGEST_NAME} characters")
        if not (isinstance(text, str) and len(text) <= LONGEST_TEXT):
            raise bad_field(field, f"must be a text of at most {LONGEST_TEXT} characters")
    return json_bytes(labels)
