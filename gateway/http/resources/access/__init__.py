"""Talks to clients about who may come in: the cluster's API keys."""

from gateway.http.resources.access.api_keys import (
    KeyList,
    KeyResource,
    KeyRotation,
    NewKeyBody,
    RotationBody,
)

__all__ = ["KeyList", "KeyResource", "KeyRotation", "NewKeyBody", "RotationBody"]
