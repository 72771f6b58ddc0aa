"""Translates requests into the bodies of other servers' APIs, and their streams into entries.

Pure. A `Target` says which API the server has and which fields it supports. A field that it lacks
is refused (`NotCarried`) if the answer would be wrong without it; otherwise it is listed in
`TranslatedBody.unheeded`. No field is dropped silently. A stream becomes the entries that one of
shoal's own runners sends, in their order. Nothing here knows HTTP statuses, keys or connections:
the gateway has those of providers, and a runner has those of its engine.
"""

from bus.translation.asking import TranslatedBody
from bus.translation.hearing import Hearing, error_message, events_in
from bus.translation.kinds import hearing_of, translated
from bus.translation.target import EXTRA_FIELDS, ServerKind, Target
from bus.translation.told import DONE, ToldInPassing, data_of
from bus.translation.troubles import BrokenStream, Filtered, NotCarried

__all__ = [
    "DONE",
    "EXTRA_FIELDS",
    "BrokenStream",
    "Filtered",
    "Hearing",
    "NotCarried",
    "ServerKind",
    "Target",
    "ToldInPassing",
    "TranslatedBody",
    "data_of",
    "error_message",
    "events_in",
    "hearing_of",
    "translated",
]
