"""Talks to the disk and other candidates: who holds the term, and the log that counts.

All but the shell, the term file and the links is pure: a stimulus goes in, actions to be carried
out in their order come out.
"""

from __future__ import annotations

from master.consensus.candidate import CandidateSettings
from master.consensus.candidate_links import CandidateLinks, CandidateRouter, candidates_in
from master.consensus.shell import CandidateShell
from master.consensus.term_file import TermFile
from master.consensus.votes import minority

__all__ = [
    "CandidateLinks",
    "CandidateRouter",
    "CandidateSettings",
    "CandidateShell",
    "TermFile",
    "candidates_in",
    "minority",
]
