"""Grammars that hold a choice's output to a form; what clients say such a form in is read here.

Pure. Knows the vocabulary and no request: a form, a thinking block and tools make a grammar.
"""

from runner.text.grammar.call_rules import Calls
from runner.text.grammar.grammars import Grammars, ThinkFirst, open_matcher

__all__ = ["Calls", "Grammars", "ThinkFirst", "open_matcher"]
