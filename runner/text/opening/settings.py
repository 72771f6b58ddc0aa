"""Which tokenizers the `tokenizers` library alone reads as transformers would, and their settings.

Pure. transformers chooses a class by `tokenizer_config.json` and by the model's family, and the
class may read `tokenizer.json` as it is, change it, or make a tokenizer of its own from parts of
it. Only what is known to end at the first is taken here: a class of the plain ones, and settings
that are all known to do nothing, or what is done here too (decision 0071; a test compares both
readers). Anything else is `Unsure`, and transformers reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from tokenizers import AddedToken

PLAIN = {"PreTrainedTokenizerFast", "TokenizersBackend"}
"""Classes that read `tokenizer.json` as it is."""
NOT_PLAIN = {
    "hyperclovax_vision_v2", "qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp",
    "siglip2",
}  # fmt: skip
"""Families for which transformers takes a class of their own, whatever class is named."""
MENDED = {"ministral", "mistral", "mistral3", "pixtral", "voxtral"}
"""Families whose tokenizers transformers may mend."""
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens by the names that any template may use."""
IGNORED = {
    "add_bos_token", "add_eos_token", "add_prefix_space", "clean_up_tokenization_spaces",
    "do_lower_case", "errors", "is_local", "legacy", "local_files_only", "max_length",
    "model_input_names", "model_max_length", "never_split", "pad_to_multiple_of",
    "pad_token_type_id", "processor_class", "sp_model_kwargs", "spaces_between_special_tokens",
    "stride", "strip_accents", "tokenize_chinese_chars", "tokenizer_class", "trim_offsets",
    "truncation_strategy", "use_default_system_prompt", "use_fast",
}  # fmt: skip
"""Settings that change nothing of what is asked of a tokenizer here, where it has a
`tokenizer.json` and a plain class."""
FIXED: Mapping[str, tuple[object, ...]] = {
    "backend": ("tokenizers",),
    "padding_side": ("left", "right"),
    "split_special_tokens": (False,),
    "truncation_side": ("left", "right"),
}
"""Settings that have to be one of these."""
READ = {
    "added_tokens_decoder", "additional_special_tokens", "chat_template",
    "extra_special_tokens", "tool_parser_type", *NAMED,
}  # fmt: skip


class Unsure(Exception):
    """Whether transformers would read it in the same way is not known; the text says why."""


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """What `tokenizer_config.json` says. `added` are tokens by their ids, None where it says
    nothing of them; `special` are special tokens by their names, `extra` those without one."""

    added: Mapping[int, AddedToken] | None
    special: Mapping[str, str | AddedToken]
    extra: tuple[str | AddedToken, ...]
    cleans_spaces: bool
    chat_template: object
    parser: str | None


def check_family(config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise Unsure where transformers takes another class than a plain one, by the model's
    `config.json` and the tokenizer's settings."""
    family = config.get("model_type")
    if not isinstance(family, str) or not family:
        raise Unsure("config.json names no family")
    if settings.get("tokenizer_class") not in PLAIN:
        raise Unsure("its class is not a plain one")
    if family in NOT_PLAIN or family in MENDED or "model_name" in config:
        raise Unsure(f"the tokenizers of {family} have a class of their own")


def read_settings(settings: Mapping[str, Any]) -> TokenizerSettings:
    """Return what a `tokenizer_config.json` says. Raises Unsure, and what `tokenizers` raises for
    tokens that are none."""
    for name, value in settings.items():
        _check_setting(name, value)
    added = settings.get("added_tokens_decoder")
    if added is not None and not isinstance(added, dict):
        raise Unsure("added_tokens_decoder is no object")
    tokens = cast("dict[str, dict[str, Any]] | None", added)
    by_id = None if tokens is None else {int(key): AddedToken(**tokens[key]) for key in tokens}
    more: Any = settings.get("extra_special_tokens") or settings.get("additional_special_tokens")
    if not isinstance(extra := more or [], list):
        raise Unsure("extra special tokens have names")
    named = [*NAMED, *(name for name in settings if _is_own_name(name))]
    return TokenizerSettings(
        added=by_id,
        special={name: _token(settings[name]) for name in named if settings.get(name) is not None},
        extra=tuple(map(_token, cast(list[Any], extra))),
        cleans_spaces=bool(settings.get("clean_up_tokenization_spaces")),
        chat_template=settings.get("chat_template"),
        parser=settings.get("tool_parser_type"),
    )


def tokens_to_add(
    settings: TokenizerSettings,
    special: Mapping[str, str | AddedToken],
    present: Mapping[int, AddedToken],
) -> list[AddedToken]:
    """Return what is added to the tokens that `tokenizer.json` has `present`. `special` are those
    of the settings as `tokenizer.json` or the settings describe them.

    Those that are there already are added once more, for special tokens become so by it."""
    described = present if settings.added is None else settings.added
    found: list[str | AddedToken] = [token for _, token in sorted(described.items())]
    contents = {token.content for token in present.values()} | {str(token) for token in found}
    for token in (*special.values(), *settings.extra):
        if str(token) not in contents and token not in found:
            found.append(token)
    names = {str(token) for token in special.values()}
    return [_as_added(token, names) for token in found]


def templates_of(found: object) -> str | dict[str, str] | None:
    """Return the chat templates that a setting holds. Raises Unsure."""
    if isinstance(found, list):
        rows = cast(list[Any], found)
        if not all(isinstance(row, dict) for row in rows):
            raise Unsure("chat_template is a list of something else")
        found = {row.get("name"): row.get("template") for row in rows}
    if isinstance(found, dict):
        known = cast(dict[object, object], found)
        if not all(isinstance(part, str) for row in known.items() for part in row):
            raise Unsure("a chat template is no text")
        return cast(dict[str, str], found)
    if found is None or isinstance(found, str):
        return found
    raise Unsure("chat_template is no text")


def _check_setting(name: str, value: object) -> None:
    if name in FIXED and value not in FIXED[name]:
        raise Unsure(f"{name} is {value}")
    if _is_own_name(name) and not isinstance(value, str):
        raise Unsure(f"{name} is no text")
    if name not in IGNORED | READ | FIXED.keys() and not _is_own_name(name):
        raise Unsure(f"{name} is not known")


def _is_own_name(name: str) -> bool:
    """Return whether a setting is a special token with a name of the model's own."""
    return name.endswith("_token") and name not in NAMED and name not in IGNORED


def _token(value: object) -> str | AddedToken:
    if isinstance(value, dict):
        fields = dict(cast(dict[str, Any], value))
        if fields.pop("__type", None) != "AddedToken":
            raise Unsure("a special token is an object of another kind")
        value = AddedToken(**fields)
    if not isinstance(value, str | AddedToken) or not str(value):
        raise Unsure("a special token is no text")
    return value


def _as_added(token: str | AddedToken, named: set[str]) -> AddedToken:
    if isinstance(token, str):
        return AddedToken(token, special=True)
    if not token.special and str(token) in named:
        token.special = True
    return token
