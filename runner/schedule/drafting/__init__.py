"""Proposes the next tokens of a row, and decides how many of them a step should verify.

Pure. A draft never changes the text of a row. The model draws its own token at every drafted
position, with the random key of that position. A drafted token counts only while it is equal.
"""

from runner.schedule.drafting.choice import SpeculateChoice, why_no_drafts
from runner.schedule.drafting.drafter import LONGEST_DRAFT, Draft, Drafter
from runner.schedule.drafting.length import LENGTHS, best_length, worth_waiting
from runner.schedule.drafting.ngram import NgramDrafter

__all__ = [
    "LENGTHS",
    "LONGEST_DRAFT",
    "Draft",
    "Drafter",
    "NgramDrafter",
    "SpeculateChoice",
    "best_length",
    "why_no_drafts",
    "worth_waiting",
]
