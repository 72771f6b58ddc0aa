"""Talks to the other parts of the process: the optional stages of a request, one feature in each
file. A request that does not use a feature does not enter its file."""

from gateway.exchange.features.background import run_in_background
from gateway.exchange.features.candidates import make_out, own_model, resolve, try_in_order
from gateway.exchange.features.clients import admit, apply_profile
from gateway.exchange.features.cutting import cut, shortened
from gateway.exchange.features.forwarding import relay
from gateway.exchange.features.history import (
    found_answer,
    named_items,
    recall,
    recall_history,
)
from gateway.exchange.features.keeping import announce, keep
from gateway.exchange.features.providing import provide
from gateway.exchange.features.reattaching import let_reattach, stream_on, take_over
from gateway.exchange.features.residency import load_or_unload, stay_warm
from gateway.exchange.features.tracing import choose_trace

__all__ = [
    "admit",
    "announce",
    "apply_profile",
    "choose_trace",
    "cut",
    "found_answer",
    "keep",
    "let_reattach",
    "load_or_unload",
    "make_out",
    "named_items",
    "own_model",
    "provide",
    "recall",
    "recall_history",
    "relay",
    "resolve",
    "run_in_background",
    "shortened",
    "stay_warm",
    "stream_on",
    "take_over",
    "try_in_order",
]
