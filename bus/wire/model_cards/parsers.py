"""The words by which a card says how its model's output is read: its calls, and its thinking.

Pure. What each means the runner knows (`runner.text.families`); without one, the model's chat
template and vocabulary tell it.
"""

from __future__ import annotations

LIBRARY_TOOL_PARSERS = (
    "function_gemma", "gemma4", "glm47", "json_tools", "kimi_k2", "kimi_k3", "laguna", "longcat",
    "minicpm5", "minimax_m2", "mistral", "muse_spark", "pythonic", "qwen3_coder",
)  # fmt: skip
"""Those that mlx-lm has."""
TOOL_PARSERS = (
    *LIBRARY_TOOL_PARSERS, "cohere", "deepseek", "granite", "hermes", "llama", "nemotron", "phi4",
    "none",
)  # fmt: skip
REASONING_PARSERS = ("think", "mistral", "seed", "cohere", "none")
"""`none`: nothing is read, all of it is plain text."""
