"""Proposes the next tokens of a row, and decides how many of them a step should verify.

Pure. A draft never changes the text of a row. The model draws its own token at every drafted
position, with the random key of that position. A drafted token counts only while it is equal.
"""

from runner.schedule.drafting.choice import EXACT_TOKENS, DraftRules, draft_rules
from runner.schedule.drafting.counts import NO_DRAFTS, DraftCounts
from runner.schedule.drafting.drafter import LONGEST_DRAFT, Draft, Drafter, NoDrafter
from runner.schedule.drafting.length import (
    LENGTHS,
    WAIT_SHARE,
    again_of,
    best_length,
    costs_of,
    worth_waiting,
)
from runner.schedule.drafting.ngram import NgramDrafter
from runner.schedule.drafting.proposals import ModelTurns
from runner.schedule.drafting.questions import AskingRow, RemoteQuestions
from runner.schedule.drafting.remote import BlockWish, RemoteDrafter
from runner.schedule.drafting.together import SharedCosts, best_shared_length, chances_of
from runner.schedule.drafting.turns import DraftTurns

__all__ = [
    "EXACT_TOKENS",
    "LENGTHS",
    "LONGEST_DRAFT",
    "NO_DRAFTS",
    "WAIT_SHARE",
    "AskingRow",
    "BlockWish",
    "Draft",
    "DraftCounts",
    "DraftRules",
    "DraftTurns",
    "Drafter",
    "ModelTurns",
    "NgramDrafter",
    "NoDrafter",
    "RemoteDrafter",
    "RemoteQuestions",
    "SharedCosts",
    "again_of",
    "best_length",
    "best_shared_length",
    "chances_of",
    "costs_of",
    "draft_rules",
    "worth_waiting",
]
