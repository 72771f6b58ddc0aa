"""Talks to gateways: accepts requests, sends a backend's answers, ends each request exactly once.

This room knows requests, not tokens or steps. A role brings a `Backend`, which answers them.
"""

from runner.serving.arrivals import too_many
from runner.serving.open_request import Backend, OpenRequest, VectorsPiece
from runner.serving.request_server import RequestServer, Tap

__all__ = ["Backend", "OpenRequest", "RequestServer", "Tap", "VectorsPiece", "too_many"]
