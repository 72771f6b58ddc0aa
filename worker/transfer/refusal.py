"""Why a model could not be fetched, in words and numbers.

Pure. The reason is `disk_full` where another node may have the room, else `weights_unavailable`;
`facts["tried"]` names each source and what was wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable

from bus.wire.errors import Refusal
from bus.wire.ids import ModelId
from worker.transfer.pieces import Pieces
from worker.transfer.source import Source


def without_source(
    model: ModelId, peers: Iterable[Source], pieces: Pieces | None, what: str
) -> Refusal:
    """No source is left, or none says anything."""
    tried = {
        f"{peer.source.node} at {peer.source.address}": peer.why or f"was {peer.life}"
        for peer in sorted(peers, key=lambda one: one.source)
    }
    said = "; ".join(f"{name} {why}" for name, why in tried.items())
    said = said or "no node gives it to others"
    return Refusal(
        reason="weights_unavailable",
        message=f"{model} could not be fetched: {what} ({said})",
        facts={
            "tried": tried,
            "done_bytes": pieces.done_bytes if pieces else 0,
            "total_bytes": pieces.total_bytes if pieces else 0,
        },
    )


def no_room(model: ModelId, missing: int, free: int, margin: int) -> Refusal:
    """The disk cannot take what is missing. All in bytes."""
    return Refusal(
        reason="disk_full",
        message=(
            f"{model} lacks {missing / 1e9:.2f} GB, but {max(free, 0) / 1e9:.2f} GB are free on "
            f"the disk, of which {margin / 1e9:.2f} GB are to stay so"
        ),
        facts={"missing_bytes": missing, "free_bytes": free, "margin_bytes": margin},
    )


def slow_disk(model: ModelId, what: str) -> Refusal:
    """The disk passed the deadline of what it was asked to do."""
    text = f"{model}: the disk took too long for {what}"
    return Refusal(reason="weights_unavailable", message=text)


def forgetful_disk(model: ModelId, path: str) -> Refusal:
    """What is written is again and again not what is read."""
    text = f"{model}: the disk does not keep what is written to {path}"
    return Refusal(reason="weights_unavailable", message=text)


def broken_disk(model: ModelId, error: Exception) -> Refusal:
    """The disk said no."""
    text = f"{model} could not be kept on the disk: {type(error).__name__}: {error}"
    return Refusal(reason="weights_unavailable", message=text)
