"""Which rows of a loaded model get drafts, and from which drafters. A request, a model card or the
setting `runner.speculate` makes the choice. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bus.wire.messages.requests import SPECULATE, Speculate
from runner.engine import EngineFacts

EXACT_TOKENS = 320
"""With `auto`, only rows of at most this many tokens get drafts. In longer rows, the last digits of
attention depend on the number of columns in a step (decision 0016), so a draft could change the
text."""


@dataclass(frozen=True, slots=True)
class DraftRules:
    """How rows with one choice of `speculate` get drafts. `why_not`: why they get none; empty if
    they get some. `copies`: drafts are copied from the row's earlier text and from the client's
    prediction. `asks_model`: the proposer in this runner guesses. `asks_remote`: a proposer in
    another runner guesses, if there is one. `within`: only while the row has at most this many
    tokens; None: no limit. `together`: also while other rows decode, if their rules allow it too.
    If a grammar allows only one text, that text is a draft in all cases but `why_not`."""

    why_not: str = ""
    copies: bool = False
    asks_model: bool = False
    asks_remote: bool = False
    within: int | None = None
    together: bool = False


def draft_rules(facts: EngineFacts, *, is_exact: bool) -> Mapping[Speculate, DraftRules]:
    """Return the rules of each choice for this model.

    "auto" requires that the text is the same with and without drafts. So it needs float32, a CPU,
    and `runner.parity = exact` (`is_exact`). Steps of several columns must give the same logits as
    plain steps, bit for bit. With a named drafter the text is repeatable. It may differ from the
    text without drafts where two tokens are about equally likely.
    """
    return {choice: _rules(choice, facts, is_exact=is_exact) for choice in SPECULATE}


def _rules(choice: Speculate, facts: EngineFacts, *, is_exact: bool) -> DraftRules:
    if choice == "off":
        return DraftRules("speculation is off")
    if not facts.verifies:
        return DraftRules(
            "drafts cannot be verified: the model is split over a group, its KV is stored in fewer "
            "bits, or its rows cannot share a batch"
        )
    if choice == "auto":
        # Not together: padding between rows moves their KV columns, which changes last digits.
        why_not = _why_not_exact(facts, is_exact=is_exact)
        asks = not (facts.no_draft_model and facts.no_mtp and facts.no_block)
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
    if choice == "block":
        # The block drafter follows one row, too.
        return DraftRules(facts.no_block, asks_model=True)
    if choice == "remote":
        return DraftRules(asks_remote=True, together=True)
    return DraftRules(copies=choice == "ngram", together=True)


def _why_not_exact(facts: EngineFacts, *, is_exact: bool) -> str:
    """Return why drafts could change the text; empty if they cannot."""
    if not is_exact or facts.extra.get("dtype") != "float32" or facts.extra.get("on_gpu"):
        return "drafts could change the text (auto needs float32, a CPU, runner.parity = exact)"
    if not facts.extra.get("drafts_exactly"):
        return "drafts could change the text (a step of several columns rounds differently here)"
    return ""
