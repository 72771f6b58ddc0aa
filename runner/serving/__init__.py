"""Talks to gateways: accepts requests, sends a responder's answers, ends each request exactly once.

This package knows requests, not steps. A role brings a `Responder`, which answers them. Two runners
can also talk: one drafts tokens for the rows of the other.
"""

from runner.serving.arrivals import too_many
from runner.serving.open_request import OpenRequest, Responder, VectorsPiece
from runner.serving.proposals import VerifierTexts
from runner.serving.proposer_link import ProposerLink
from runner.serving.request_server import RequestServer, Tap

__all__ = [
    "OpenRequest",
    "ProposerLink",
    "RequestServer",
    "Responder",
    "Tap",
    "VectorsPiece",
    "VerifierTexts",
    "too_many",
]
