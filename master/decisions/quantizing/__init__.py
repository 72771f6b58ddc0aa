"""Decides which node quantizes a model, or gives the reason why no node can. Pure.

A quantization is tried once, like a collective test (`master.decisions.collective_tests`).
"""

from master.decisions.quantizing.quantize import decide_quantizing

__all__ = ["decide_quantizing"]
