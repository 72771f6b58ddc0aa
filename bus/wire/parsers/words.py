"""By what rules a model's output is read, where its card names them: of calls, and of thinking.

Pure. What none is named for is found by the model's chat template and vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

NONE = "none"
"""Nothing is read: all of it is plain text."""
LIBRARY_TOOL_PARSERS = (
    "function_gemma", "gemma4", "glm47", "json_tools", "kimi_k2", "kimi_k3", "laguna", "longcat",
    "minicpm5", "minimax_m2", "mistral", "muse_spark", "pythonic", "qwen3_coder",
)  # fmt: skip
"""Those that mlx-lm has."""
TOOL_PARSERS = (
    *LIBRARY_TOOL_PARSERS, "cohere", "deepseek", "granite", "hermes", "llama", "nemotron", "phi4",
    NONE,
)  # fmt: skip
THINKING_MARKS: Mapping[str, tuple[str, str]] = {
    "think": ("<think>", "</think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "seed": ("<seed:think>", "</seed:think>"),
    "cohere": ("<|START_THINKING|>", "<|END_THINKING|>"),
}
"""The text before thinking and behind it."""
REASONING_PARSERS = (*THINKING_MARKS, NONE)
