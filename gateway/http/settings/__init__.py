"""Talks to clients about settings: shows and changes those of this node or of all nodes."""

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
