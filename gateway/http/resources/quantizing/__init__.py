"""Talks to clients who have a node make a model of another in fewer bits."""

from gateway.http.resources.quantizing.quantize import QuantizeAnswer, QuantizeBody, QuantizeModels

__all__ = ["QuantizeAnswer", "QuantizeBody", "QuantizeModels"]
