"""Talks to clients about the settings of the node that is asked, or of all: what is in force, what
runs, and changes for those who may do everything."""

from gateway.http.settings.nodes import answer_settings
from gateway.http.settings.resource import ClusterSettings, SettingsBody, SettingsResource

__all__ = ["ClusterSettings", "SettingsBody", "SettingsResource", "answer_settings"]
