"""Talks to runners: has a long prompt computed on another node before the request is submitted
(decision 0109).

`choice` decides; it is pure. `errand` is one question to a runner. `splits` has the requests whose
prompts are being computed elsewhere.
"""

from gateway.requests.splitting.choice import (
    SPLIT_TOKENS,
    Offer,
    PrefillPlan,
    choose_prefill,
)
from gateway.requests.splitting.splits import PhaseSplits

__all__ = ["SPLIT_TOKENS", "Offer", "PhaseSplits", "PrefillPlan", "choose_prefill"]
