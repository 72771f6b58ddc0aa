"""Weights in fewer bits: what a runner makes of a model on its disk.

Pure. The order is a `Quantizing` stamped on an instance that answers nothing; its `model` is what it
makes. How far it is, its runner's reading says.
"""

from __future__ import annotations

from typing import Literal

from bus.wire.ids import ModelId
from bus.wire.messages.wire import Message

Bits = Literal[4, 6, 8]
GroupSize = Literal[32, 64, 128]
"""How many weights of a row share a scale and a bias."""
USUAL_GROUP: GroupSize = 64
MADE_FROM = "shoal_made_from"
"""The key of a made model's config.json that names its source: so it goes wherever the model is
copied to."""
UNFINISHED = ".quantizing"
"""In the folder of all models, where those grow that are not whole yet."""


class Quantizing(Message):
    """Make another model of `source`, which lies whole on the rank's node, in so many bits a
    weight."""

    source: ModelId
    bits: Bits
    group_size: GroupSize = USUAL_GROUP


def usual_name(source: ModelId, bits: int) -> ModelId:
    """Return what a model in fewer bits is called where no name is given: never one of an owner on
    a hub, who has not made it."""
    return ModelId(f"{source.rpartition('/')[2]}-{bits}bit")
