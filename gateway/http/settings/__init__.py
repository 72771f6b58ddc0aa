"""Talks to clients about the settings of this node or of all nodes: shows and changes them."""

from gateway.http.settings.nodes import answer_settings
from gateway.http.settings.resource import (
    SettingsAnswer,
    SettingsBody,
    SettingsOfAll,
    SettingsResource,
)

__all__ = [
    "SettingsAnswer",
    "SettingsBody",
    "SettingsOfAll",
    "SettingsResource",
    "answer_settings",
]
