"""Talks to a hub and the disk: fetches the files of one listing, or what some layers need of them.
The files grow in a folder until they are complete and verified.

`files` decides which pieces to request next, and is pure. Importing this room loads none of its
modules: the worker uses only `partial`, and not the HTTP client.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worker.pulling.fetching import fetch, files, partial, ranges

__all__ = ["fetch", "files", "partial", "ranges"]
