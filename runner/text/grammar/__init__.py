"""Compiles the output formats that clients request into grammars.

Pure. It knows the vocabulary but no requests. A grammar combines a format, a thinking block and
tools.
"""

from runner.text.grammar.call_rules import Calls
from runner.text.grammar.grammars import Grammars, ThinkFirst
from runner.text.grammar.row_matcher import (
    BadGrammar,
    DeadEnd,
    RowMatcher,
    RowMatchers,
    open_matcher,
)

__all__ = [
    "BadGrammar",
    "Calls",
    "DeadEnd",
    "Grammars",
    "RowMatcher",
    "RowMatchers",
    "ThinkFirst",
    "open_matcher",
]
