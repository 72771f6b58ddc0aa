"""Talks to one process per page: HTML in; title, text and links out.

It fetches nothing, and knows only the URL that links are relative to.
"""

from gateway.fetching.reading.reader import PageQuestion, PageReader, ReadLimits

__all__ = ["PageQuestion", "PageReader", "ReadLimits"]
