"""Talks to one process per page: sends the page's HTML to that process, and gets the page's title,
text and links from it.

This package fetches nothing. It knows only the URL to which the page's links are relative.
"""

from gateway.fetching.reading.reader import PageQuestion, PageReader, ReadLimits

__all__ = ["PageQuestion", "PageReader", "ReadLimits"]
