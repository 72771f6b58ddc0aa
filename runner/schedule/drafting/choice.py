"""Whether rows of a loaded model are drafted, by the setting `runner.speculate`. Pure."""

from __future__ import annotations

from typing import Literal

from runner.engine import EngineFacts

EXACT_TOKENS = 320
"""With longer rows the last digits of attention depend on the columns that a step attends to
(decision 0016), even if products have the bits of plain steps."""

SpeculateChoice = Literal["auto", "off", "ngram"]


def why_no_drafts(choice: SpeculateChoice, facts: EngineFacts, *, is_exact: bool) -> str:
    """Return why no drafts are verified; empty if they are.

    "auto" requires that text is the same with and without drafts. So it needs float32, a CPU, and
    `runner.parity = exact` (`is_exact`). Steps of several columns must have the bits of plain
    steps. With "ngram" the text is repeatable. It may differ from the text without drafts where two
    tokens are about equally likely.
    """
    if choice == "off":
        return "runner.speculate is off"
    if not facts.verifies:
        return "this model or group cannot take back tokens, or its rows cannot share a batch"
    same = is_exact and facts.extra.get("dtype") == "float32" and not facts.extra.get("on_gpu")
    if choice == "auto" and not same:
        return "text could differ (it needs float32 on a CPU and runner.parity = exact)"
    if choice == "auto" and not facts.extra.get("drafts_exactly"):
        return "text could differ (on this machine a step of several columns rounds differently)"
    return ""
