"""Names of the parsers of a model's output, for a card: tool calls and thinking.

Pure. The runner has the parsers (`runner.text.families`). Without a name in the card, the model's
chat template and vocabulary select one.
"""

from __future__ import annotations

LIBRARY_TOOL_PARSERS = (
    "function_gemma", "gemma4", "glm47", "json_tools", "kimi_k2", "kimi_k3", "laguna", "longcat",
    "minicpm5", "minimax_m2", "mistral", "muse_spark", "pythonic", "qwen3_coder",
)  # fmt: skip
"""The tool parsers of mlx-lm."""
TOOL_PARSERS = (
    *LIBRARY_TOOL_PARSERS, "cohere", "deepseek", "granite", "hermes", "llama", "nemotron", "phi4",
    "none",
)  # fmt: skip
REASONING_PARSERS = ("think", "mistral", "seed", "cohere", "none")
"""Parsers of a model's thinking. `none`: no thinking is parsed; the whole output is plain text."""
