"""Talks to a process of its own for each page: HTML in, its title, text and links out.

Knows no URL but what links are relative to, and fetches nothing.
"""

from gateway.fetching.reading.reader import PageQuestion, PageReader, ReadLimits

__all__ = ["PageQuestion", "PageReader", "ReadLimits"]
