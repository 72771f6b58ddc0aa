"""The `bus` process: it forwards messages between services and nodes, stores retained values, and
serves the tap, a socket at which an operator can watch messages.

The switchboard knows topics. It forwards messages without decoding them, except retained values. A
process that listens to the tap does not import the switchboard.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bus.membership.peer_links import PeerSettings
    from bus.switchboard.switchboard import Switchboard
    from bus.switchboard.tap_client import Tapped, listen, literal_prefix
    from bus.wire.messages.peers import PeerPorts

__all__ = ["PeerPorts", "PeerSettings", "Switchboard", "Tapped", "listen", "literal_prefix"]
_HOMES = {
    "PeerPorts": "bus.wire.messages.peers",
    "PeerSettings": "bus.membership.peer_links",
    "Switchboard": "bus.switchboard.switchboard",
    "Tapped": "bus.switchboard.tap_client",
    "listen": "bus.switchboard.tap_client",
    "literal_prefix": "bus.switchboard.tap_client",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(import_module(_HOMES[name]), name)
