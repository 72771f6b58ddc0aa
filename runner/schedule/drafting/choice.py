"""Whether rows of a loaded model are drafted, by the setting `runner.speculate`. Pure."""

from __future__ import annotations

from typing import Literal

from runner.engine import EngineFacts

SpeculateChoice = Literal["auto", "off", "ngram"]


def why_no_drafts(choice: SpeculateChoice, facts: EngineFacts, *, is_exact: bool) -> str:
    """Return why no drafts are verified; empty if they are.

    "auto" requires that text is the same with and without drafts: float32, on a CPU, and
    `runner.parity = exact` (`is_exact`). Then the width of a step changes its results in their last
    digits at most. "ngram" does not require it.
    """
    if choice == "off":
        return "runner.speculate is off"
    if not facts.verifies:
        return "this model or group cannot take back tokens, or its rows cannot share a batch"
    same = is_exact and facts.extra.get("dtype") == "float32" and not facts.extra.get("on_gpu")
    if choice == "auto" and not same:
        return "text could differ (it needs float32 on a CPU and runner.parity = exact)"
    return ""
