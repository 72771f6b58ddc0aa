"""Talks to clients about the `card.toml` of a model: what it says, and that it is to say something
else.
"""

from gateway.http.resources.cards.card import CardBody, ModelCardResource

__all__ = ["CardBody", "ModelCardResource"]
