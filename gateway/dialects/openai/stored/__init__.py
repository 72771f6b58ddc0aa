"""OpenAI's stored chat completions (requests with `store`): renders, lists and labels them.

Pure. Only the OpenAI dialect and its table of paths import this package.
"""

from gateway.dialects.openai.stored.labels import StoredLabelsBody, labels_of, read_labels
from gateway.dialects.openai.stored.listing import (
    render_list,
    render_messages,
    render_removed,
    render_stored,
    stored_page,
)
from gateway.dialects.openai.stored.messages import to_keep_of

__all__ = [
    "StoredLabelsBody",
    "labels_of",
    "read_labels",
    "render_list",
    "render_messages",
    "render_removed",
    "render_stored",
    "stored_page",
    "to_keep_of",
]
