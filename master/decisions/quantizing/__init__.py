"""Where a model in fewer bits is made, or why not. Pure. How it ends is as with a collective test
(`master.decisions.collective_tests`): it is tried once."""

from master.decisions.quantizing.quantize import decide_quantizing

__all__ = ["decide_quantizing"]
