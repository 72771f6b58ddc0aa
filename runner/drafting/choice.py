"""Whether rows of a loaded model are drafted, by the setting `runner.speculate`. Pure."""

from __future__ import annotations

from typing import Literal

SpeculateChoice = Literal["auto", "off", "ngram"]


def why_no_drafts(choice: SpeculateChoice, *, verifies: bool, promises_identity: bool) -> str:
    """Return why no drafts are verified; empty if they are.

    `verifies`: the engine can verify drafts of this model. `promises_identity`: text is the same
    with and without drafts, because results depend on the width of a step in their last digits at
    most (float32, on a CPU, `runner.parity = exact`). "auto" requires it; "ngram" does not.
    """
    if choice == "off":
        return "runner.speculate is off"
    if not verifies:
        return "this model or group cannot take back tokens, or its rows cannot share a batch"
    if choice == "auto" and not promises_identity:
        return "text could differ (it needs float32 on a CPU and runner.parity = exact)"
    return ""
