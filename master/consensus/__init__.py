"""Talks to the disk and other candidates: elects the leader, and replicates the leader's log.

The shell, the term file, the keys file and the links do I/O. All other modules are pure: they take
a stimulus and return actions, in the order in which the shell must perform them.
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
