"""Decide which tokenizers the `tokenizers` library alone reads as transformers would, and read
their settings.

Pure. transformers chooses a class by `tokenizer_config.json` and by the model's family. The class
may use `tokenizer.json` as it is, change it, or rebuild a tokenizer from parts of it. Only the
first case is accepted here: a plain class, with settings that all do nothing or are applied here
too (decision 0071; a test compares both readers). Anything else is `Unsure`, and transformers reads
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from tokenizers import AddedToken

PLAIN = {"PreTrainedTokenizerFast", "TokenizersBackend"}
"""Tokenizer classes of transformers that use `tokenizer.json` as it is."""
NOT_PLAIN = {
    "hyperclovax_vision_v2", "qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp",
    "siglip2",
}  # fmt: skip
"""Model families for which transformers uses a special tokenizer class, even if the settings name
another."""
MENDED = {"ministral", "mistral", "mistral3", "pixtral", "voxtral"}
"""Model families whose tokenizers transformers may change after reading them."""
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The settings that name a special token in every tokenizer."""
IGNORED = {
    "add_bos_token", "add_eos_token", "add_prefix_space", "clean_up_tokenization_spaces",
    "do_lower_case", "errors", "is_local", "legacy", "local_files_only", "max_length",
    "model_input_names", "model_max_length", "never_split", "pad_to_multiple_of",
    "pad_token_type_id", "processor_class", "sp_model_kwargs", "spaces_between_special_tokens",
    "stride", "strip_accents", "tokenize_chinese_chars", "tokenizer_class", "trim_offsets",
    "truncation_strategy", "use_default_system_prompt", "use_fast",
}  # fmt: skip
"""Settings without effect on our use of a tokenizer that has a `tokenizer.json` and a plain
class."""
FIXED: Mapping[str, tuple[object, ...]] = {
    "backend": ("tokenizers",),
    "padding_side": ("left", "right"),
    "split_special_tokens": (False,),
    "truncation_side": ("left", "right"),
}
"""Settings that must have one of the listed values, because shoal treats them as fixed."""
READ = {
    "added_tokens_decoder", "additional_special_tokens", "chat_template",
    "extra_special_tokens", "tool_parser_type", *NAMED,
}  # fmt: skip


class Unsure(Exception):
    """transformers might read this tokenizer differently; the text says why."""


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """The content of `tokenizer_config.json`. `added` has the added tokens by id; it is None if the
    file lists none. `special` has special tokens by the name of their setting, `extra` those
    without one."""

    added: Mapping[int, AddedToken] | None
    special: Mapping[str, str | AddedToken]
    extra: tuple[str | AddedToken, ...]
    cleans_spaces: bool
    chat_template: object
    parser: str | None


def check_family(config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise Unsure if transformers uses a class other than a plain one, by the model's
    `config.json` and the tokenizer's settings."""
    family = config.get("model_type")
    if not isinstance(family, str) or not family:
        raise Unsure("config.json has no model_type")
    if settings.get("tokenizer_class") not in PLAIN:
        raise Unsure("the tokenizer's class is not a plain one")
    if family in NOT_PLAIN or family in MENDED or "model_name" in config:
        raise Unsure(f"the family {family} has tokenizer classes of its own")


def read_settings(settings: Mapping[str, Any]) -> TokenizerSettings:
    """Return the content of a `tokenizer_config.json`. Raises Unsure, and errors of `tokenizers`
    for invalid tokens."""
    for name, value in settings.items():
        _check_setting(name, value)
    added = settings.get("added_tokens_decoder")
    if added is not None and not isinstance(added, dict):
        raise Unsure("added_tokens_decoder is not an object")
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
    """Return the tokens to add to those `present` in `tokenizer.json`. `special` are those of the
    settings, as `tokenizer.json` or the settings describe them.

    Present tokens are added again, which makes them special.
    """
    described = present if settings.added is None else settings.added
    tokens: list[str | AddedToken] = [token for _, token in sorted(described.items())]
    contents = {token.content for token in present.values()} | {str(token) for token in tokens}
    for token in (*special.values(), *settings.extra):
        if str(token) not in contents and token not in tokens:
            tokens.append(token)
    names = {str(token) for token in special.values()}
    return [_as_added(token, names) for token in tokens]


def templates_of(setting: object) -> str | dict[str, str] | None:
    """Return the chat templates in the setting `chat_template`, by name if there are several.
    Raises Unsure."""
    if isinstance(setting, list):
        rows = cast(list[Any], setting)
        if not all(isinstance(row, dict) for row in rows):
            raise Unsure("chat_template is a list with invalid items")
        setting = {row.get("name"): row.get("template") for row in rows}
    if isinstance(setting, dict):
        mapping = cast(dict[object, object], setting)
        if not all(isinstance(part, str) for row in mapping.items() for part in row):
            raise Unsure("a chat template is not a string")
        return cast(dict[str, str], setting)
    if setting is None or isinstance(setting, str):
        return setting
    raise Unsure("chat_template is not a string")


def _check_setting(name: str, value: object) -> None:
    if name in FIXED and value not in FIXED[name]:
        raise Unsure(f"{name} is {value}")
    if _is_own_name(name) and not isinstance(value, str):
        raise Unsure(f"{name} is not a string")
    if name not in IGNORED | READ | FIXED.keys() and not _is_own_name(name):
        raise Unsure(f"{name} is not supported")


def _is_own_name(name: str) -> bool:
    """Return whether a setting defines a special token under a name that only this model uses."""
    return name.endswith("_token") and name not in NAMED and name not in IGNORED


def _token(value: object) -> str | AddedToken:
    if isinstance(value, dict):
        fields = dict(cast(dict[str, Any], value))
        if fields.pop("__type", None) != "AddedToken":
            raise Unsure("a special token is an object of an unknown type")
        value = AddedToken(**fields)
    if not isinstance(value, str | AddedToken) or not str(value):
        raise Unsure("a special token is not a string")
    return value


def _as_added(token: str | AddedToken, named: set[str]) -> AddedToken:
    if isinstance(token, str):
        return AddedToken(token, special=True)
    if not token.special and str(token) in named:
        token.special = True
    return token
