"""The names by which people ask for models of a hub, and the repositories that they mean.

Pure. A few names of the kind that Ollama has stand for quantised models of mlx-community; the
setting `pull_names` adds more. What is not in the table is a repository's own name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from bus.wire.errors import BadRequest
from bus.wire.ids import MODEL_ID_PATTERN, ModelId, is_model_id

HUB_PREFIXES = ("https://huggingface.co/", "huggingface.co/", "https://hf.co/", "hf.co/")
_MLX = {
    "deepseek-r1:1.5b": "DeepSeek-R1-Distill-Qwen-1.5B-4bit",
    "deepseek-r1:7b": "DeepSeek-R1-Distill-Qwen-7B-4bit",
    "gemma2:2b": "gemma-2-2b-it-4bit",
    "gemma3:1b": "gemma-3-1b-it-4bit",
    "llama3.1:8b": "Meta-Llama-3.1-8B-Instruct-4bit",
    "llama3.2:1b": "Llama-3.2-1B-Instruct-4bit",
    "llama3.2:3b": "Llama-3.2-3B-Instruct-4bit",
    "llama3.3:70b": "Llama-3.3-70B-Instruct-4bit",
    "mistral:7b": "Mistral-7B-Instruct-v0.3-4bit",
    "qwen2.5:0.5b": "Qwen2.5-0.5B-Instruct-4bit",
    "qwen2.5:1.5b": "Qwen2.5-1.5B-Instruct-4bit",
    "qwen2.5:7b": "Qwen2.5-7B-Instruct-4bit",
    "qwen2.5-coder:7b": "Qwen2.5-Coder-7B-Instruct-4bit",
    "qwen3:0.6b": "Qwen3-0.6B-4bit",
    "qwen3:1.7b": "Qwen3-1.7B-4bit",
    "qwen3:4b": "Qwen3-4B-4bit",
    "qwen3:8b": "Qwen3-8B-4bit",
    "qwen3:14b": "Qwen3-14B-4bit",
    "qwen3:30b-a3b": "Qwen3-30B-A3B-4bit",
    "qwen3:32b": "Qwen3-32B-4bit",
}
KNOWN_NAMES: Mapping[str, str] = {name: f"mlx-community/{one}" for name, one in _MLX.items()}


@dataclass(frozen=True, slots=True)
class PullTarget:
    """A repository and its revision ("": the newest). `known_as` is the name that stands for it in
    the table; empty: it was named itself."""

    model: ModelId
    revision: str = ""
    known_as: str = ""


def names_of(entries: Sequence[str]) -> dict[str, str]:
    """Return the table, with the entries (`name=OWNER/REPOSITORY`) of a setting before our own."""
    added = (entry.partition("=") for entry in entries)
    return {**KNOWN_NAMES, **{name: repository for name, _, repository in added}}


def known_repository(name: str, names: Mapping[str, str]) -> ModelId | None:
    """Return the repository that a name of the table stands for; None for another name."""
    found = names.get(name.lower())
    return None if found is None else ModelId(found)


def pull_target(asked: str, revision: str, names: Mapping[str, str]) -> PullTarget:
    """Return what is to be pulled for a name with or without `@REVISION`. Raises BadRequest."""
    name, _, said = asked.strip().partition("@")
    for prefix in (*HUB_PREFIXES, "library/"):
        name = name.removeprefix(prefix)
    if said and revision and said != revision:
        raise BadRequest(f"{asked!r} and {revision!r} are different revisions", field="revision")
    revision = said or revision
    if revision and not is_revision(revision):
        raise BadRequest(f"{revision[:80]!r} is not a commit, branch or tag", field="revision")
    found = known_repository(name, names)
    if found is not None:
        return PullTarget(found, revision, name.lower())
    plain = name.removesuffix(":latest").rstrip("/")
    if "/" not in plain or ":" in plain or not is_model_id(plain):
        text = (
            f"{asked[:120]!r} is neither a hub repository (OWNER/NAME, such as "
            f"mlx-community/Qwen3-4B-4bit) nor a known short name ({_some(names)})"
        )
        raise BadRequest(text, field="model")
    return PullTarget(ModelId(plain), revision)


def demanded_repository(
    name: str, names: Mapping[str, str], patterns: Sequence[str]
) -> ModelId | None:
    """Return the repository that a request for a model that is nowhere has pulled: one that fits
    one of the `patterns`, written as a shell's. None for all others, and for a revision's name."""
    if not patterns or "@" in name:
        return None
    try:
        model = pull_target(name, "", names).model
    except BadRequest:
        return None
    folded = model.casefold()
    return model if any(fnmatchcase(folded, pattern.casefold()) for pattern in patterns) else None


def is_revision(text: str) -> bool:
    """Return whether a text may name a revision: no blanks, no way out of a path."""
    plain = text.replace("/", "-")
    return len(text) <= 200 and ".." not in text and MODEL_ID_PATTERN.fullmatch(plain) is not None


def _some(names: Mapping[str, str]) -> str:
    return ", ".join(sorted(names)[:40])
