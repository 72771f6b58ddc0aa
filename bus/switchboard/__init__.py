"""The `bus` process: forwards messages of services, stores retained values, serves the tap.

It knows topics. It forwards all messages unopened, except retained ones. A listener at the tap does
not import the switchboard.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bus.switchboard.switchboard import Switchboard
    from bus.switchboard.tap_client import Tapped, listen, literal_prefix

__all__ = ["Switchboard", "Tapped", "listen", "literal_prefix"]
_HOMES = {
    "Switchboard": "bus.switchboard.switchboard",
    "Tapped": "bus.switchboard.tap_client",
    "listen": "bus.switchboard.tap_client",
    "literal_prefix": "bus.switchboard.tap_client",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(import_module(_HOMES[name]), name)
