"""What a fetch may ask of its shell.

Pure. To be done in the order given.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.wire.messages.weights import AskManifest, AskPiece, Manifest
from worker.transfer.pieces import Piece
from worker.transfer.source import StoreAddress


@dataclass(frozen=True, slots=True)
class AskSource:
    """Send this to a source."""

    source: StoreAddress
    message: AskManifest | AskPiece


@dataclass(frozen=True, slots=True)
class OpenStage:
    """Open (or find again) the stage of this manifest; answer with `staged`."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class WritePiece:
    """Write this piece, then note that it is there: before anything that follows."""

    piece: Piece
    content: bytes


@dataclass(frozen=True, slots=True)
class CheckFile:
    """Hash a file as it lies in the stage, whole or its `wanted` pieces; answer with `checked`."""

    digest: str
    path: str
    wanted: bytes | None = None


@dataclass(frozen=True, slots=True)
class PublishModel:
    """Every file is right: put the model in its place; answer with `published`."""


DownloadAction = AskSource | OpenStage | WritePiece | CheckFile | PublishModel
