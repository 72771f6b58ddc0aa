"""Where a model is quantized, or why not. Pure. It ends like a collective test
(`master.decisions.collective_tests`): it is tried once.
"""

from master.decisions.quantizing.quantize import decide_quantizing

__all__ = ["decide_quantizing"]
