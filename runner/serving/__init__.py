"""Talks to gateways: accepts requests, sends a responder's answers, ends each request exactly once.

This package knows requests, not tokens or steps. A role brings a `Responder`, which answers them.
"""

from runner.serving.arrivals import too_many
from runner.serving.open_request import OpenRequest, Responder, VectorsPiece
from runner.serving.request_server import RequestServer, Tap

__all__ = ["OpenRequest", "RequestServer", "Responder", "Tap", "VectorsPiece", "too_many"]
