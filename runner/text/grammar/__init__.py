"""Compile the output formats that clients request into grammars.

Pure. Knows the vocabulary but no requests: a format, a thinking block and tools make a grammar.
"""

from runner.text.grammar.call_rules import Calls
from runner.text.grammar.grammars import Grammars, ThinkFirst, open_matcher

__all__ = ["Calls", "Grammars", "ThinkFirst", "open_matcher"]
