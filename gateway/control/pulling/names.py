"""Short names for models of a hub, and the repositories that they stand for.

Pure. A few names in Ollama's style stand for quantised models of mlx-community; the setting
`pull_names` adds more. Any other name is the name of a repository, or of a GGUF quantisation of it:
`OWNER/NAME:QUANTISATION`, which is also the name of the model once it is pulled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from bus.models.gguf import canonical, repository_of
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
KNOWN_NAMES: Mapping[str, str] = {
    name: f"mlx-community/{repository}" for name, repository in _MLX.items()
}


@dataclass(frozen=True, slots=True)
class PullTarget:
    """A repository, or a quantisation of one, and its revision (empty: the newest). `known_as` is
    its short name in the table; empty if the repository itself was named."""

    model: ModelId
    revision: str = ""
    known_as: str = ""


def names_of(entries: Sequence[str]) -> dict[str, str]:
    """Return the table of short names, with the entries of a setting (`name=OWNER/REPOSITORY`).
    They override shoal's own entries."""
    added = (entry.partition("=") for entry in entries)
    return {**KNOWN_NAMES, **{name: repository for name, _, repository in added}}


def known_repository(name: str, names: Mapping[str, str]) -> ModelId | None:
    """Return the repository of a short name; None if the table lacks the name."""
    repository = names.get(name.lower())
    return None if repository is None else ModelId(repository)


def pull_target(text: str, revision: str, names: Mapping[str, str]) -> PullTarget:
    """Return the pull target of a name, with or without `:QUANTISATION` and `@REVISION`. Raises
    BadRequest."""
    name, _, in_name = text.strip().partition("@")
    for prefix in (*HUB_PREFIXES, "library/"):
        name = name.removeprefix(prefix)
    if in_name and revision and in_name != revision:
        raise BadRequest(f"{text!r} and {revision!r} are different revisions", field="revision")
    revision = in_name or revision
    if revision and not is_revision(revision):
        raise BadRequest(f"{revision[:80]!r} is not a commit, branch or tag", field="revision")
    repository = known_repository(name, names)
    if repository is not None:
        return PullTarget(repository, revision, name.lower())
    plain = name.removesuffix(":latest").rstrip("/")
    if "/" not in plain or not is_model_id(plain):
        problem = (
            f"{text[:120]!r} is neither a hub repository (OWNER/NAME, such as "
            "mlx-community/Qwen3-4B-4bit, or OWNER/NAME:QUANTISATION for GGUF) nor a known short "
            f"name ({_some(names)})"
        )
        raise BadRequest(problem, field="model")
    repository, tag = repository_of(plain)
    return PullTarget(ModelId(f"{repository}:{canonical(tag)}") if tag else repository, revision)


def demanded_repository(
    name: str, names: Mapping[str, str], patterns: Sequence[str]
) -> ModelId | None:
    """Return the model to pull for a request for a missing model, if its name or its repository
    matches one of the `patterns` (shell wildcards). Otherwise, and for a name with a revision,
    return None."""
    if not patterns or "@" in name:
        return None
    try:
        model = pull_target(name, "", names).model
    except BadRequest:
        return None
    folded = {model.casefold(), repository_of(model)[0].casefold()}
    allowed = (fnmatchcase(name, pattern.casefold()) for pattern in patterns for name in folded)
    return model if any(allowed) else None


def is_revision(text: str) -> bool:
    """Return whether a text may name a revision: no blanks, and no path that leads out of its
    folder."""
    plain = text.replace("/", "-")
    return len(text) <= 200 and ".." not in text and MODEL_ID_PATTERN.fullmatch(plain) is not None


def _some(names: Mapping[str, str]) -> str:
    return ", ".join(sorted(names)[:40])
