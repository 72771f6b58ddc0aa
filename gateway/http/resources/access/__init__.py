"""Talks to clients about access: lists, creates and deletes the cluster's API keys."""

from gateway.http.resources.access.api_keys import (
    KeyList,
    KeyResource,
    KeyRotation,
    KeysAnswer,
    NewKey,
    NewKeyBody,
    RemovedKey,
    RotatedKey,
    RotationBody,
)

__all__ = [
    "KeyList",
    "KeyResource",
    "KeyRotation",
    "KeysAnswer",
    "NewKey",
    "NewKeyBody",
    "RemovedKey",
    "RotatedKey",
    "RotationBody",
]
