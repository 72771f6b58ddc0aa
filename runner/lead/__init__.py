"""Talks to the engine and the text thread: serves a generative model.

It schedules a row for each choice of a request, and turns the tokens of rows into text.
"""

from runner.lead.lead_loop import IDLE_S, MEMORY_EVERY_S, LeadLoop, Stepped
from runner.lead.memory_watch import MemoryWatch, ProcessMemory
from runner.lead.open_text import OpenText
from runner.lead.proposer import RowProposer
from runner.lead.remote_drafts import RemoteDrafts
from runner.lead.text_responder import TextResponder
from runner.lead.warm_up import WarmUp

__all__ = [
    "IDLE_S",
    "MEMORY_EVERY_S",
    "LeadLoop",
    "MemoryWatch",
    "OpenText",
    "ProcessMemory",
    "RemoteDrafts",
    "RowProposer",
    "Stepped",
    "TextResponder",
    "WarmUp",
]
