"""Talks to the bus, to pull processes and to the disk: the pulls of one worker.

`board` lists the pulls and publishes their states. `record` stores the background pulls on disk, so
that a restarted worker resumes them. `changes` cancels, pauses and resumes pulls for users.
"""

from worker.pulling.active.pulls import Pulls

__all__ = ["Pulls"]
