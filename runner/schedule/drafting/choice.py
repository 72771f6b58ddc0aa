"""How the rows of a loaded model are drafted, by the choice of a request, a card or the setting
`runner.speculate`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bus.wire.messages.requests import SPECULATE, Speculate
from runner.engine import EngineFacts

EXACT_TOKENS = 320
"""With longer rows the last digits of attention depend on the columns that a step attends to
(decision 0016), even if products have the bits of plain steps."""


@dataclass(frozen=True, slots=True)
class DraftRules:
    """How rows with one choice are drafted. `why_not`: why they decode plainly; empty if they are
    drafted. `copies`: from earlier text and the prediction. `asks_model`: the draft model or the
    MTP head guesses. `asks_remote`: a proposer in another runner guesses, if there is one.
    `within`: only up to so many tokens of the row; None: without a limit. `together`: also beside
    other rows, if these allow it, too. The text that a grammar implies is always a draft."""

    why_not: str = ""
    copies: bool = False
    asks_model: bool = False
    asks_remote: bool = False
    within: int | None = None
    together: bool = False


def draft_rules(facts: EngineFacts, *, is_exact: bool) -> Mapping[Speculate, DraftRules]:
    """Return the rules of each choice for this model.

    "auto" requires that text is the same with and without drafts. So it needs float32, a CPU, and
    `runner.parity = exact` (`is_exact`). Steps of several columns must have the bits of plain
    steps. With a named drafter the text is repeatable. It may differ from the text without drafts
    where two tokens are about equally likely.
    """
    return {choice: _rules(choice, facts, is_exact=is_exact) for choice in SPECULATE}


def _rules(choice: Speculate, facts: EngineFacts, *, is_exact: bool) -> DraftRules:
    if choice == "off":
        return DraftRules("speculation is off")
    if not facts.verifies:
        return DraftRules(
            "this model or group cannot verify drafts: it is a group, its KV is stored in fewer "
            "bits, or its rows cannot share a batch"
        )
    if choice == "auto":
        # Gaps in a row's KV move its columns, on which the last digits depend: never together.
        why_not = _why_not_exact(facts, is_exact=is_exact)
        asks = not (facts.no_draft_model and facts.no_mtp)
        within = min(EXACT_TOKENS, int(facts.extra.get("exact_tokens", EXACT_TOKENS)))
        return DraftRules(
            why_not, copies=True, asks_model=asks, asks_remote=not asks, within=within
        )
    if choice == "draft_model":
        # The draft model serves one row at a time.
        return DraftRules(facts.no_draft_model, asks_model=True)
    if choice == "mtp":
        # The head follows one row.
        return DraftRules(facts.no_mtp, asks_model=True)
    if choice == "remote":
        return DraftRules(asks_remote=True, together=True)
    return DraftRules(copies=choice == "ngram", together=True)


def _why_not_exact(facts: EngineFacts, *, is_exact: bool) -> str:
    """Return why drafts could change the text; empty if they cannot."""
    if not is_exact or facts.extra.get("dtype") != "float32" or facts.extra.get("on_gpu"):
        return "text could differ (it needs float32 on a CPU and runner.parity = exact)"
    if not facts.extra.get("drafts_exactly"):
        return "text could differ (on this machine a step of several columns rounds differently)"
    return ""
