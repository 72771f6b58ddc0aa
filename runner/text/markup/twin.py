# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (some of tokenizers' functions are untyped)
"""A second view of the tokenizer, in which each markup token has a new name that no text contains.

Pure. If the template's markup in a prompt is written with the new names, the tokens are the same as
before, while markup that a client wrote becomes text. Both views share the vocabulary. A model that
merges control tokens from letters, as Unigram models do, gets its own copy on first use. The copy
costs one or two seconds, and the memory of a second vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import AddedToken, Tokenizer

from runner.text.markup.spellings import Markup, Span


class Twin:
    """A tokenizer in which each markup token has a new name that no text contains."""

    def __init__(self, backend: Any, markup: Markup, secret: str) -> None:
        """Share the vocabulary of `backend`, a `tokenizers.Tokenizer`. Each name begins with
        `secret` (letters and digits). Raises ValueError if markup would get other tokens."""
        self._backend = backend
        self._spellings = markup.all
        tokens = sorted(markup.control | markup.tags)
        self._names = {text: f"<{secret}{number:05}>" for number, text in enumerate(tokens)}
        self._ids = {backend.token_to_id(text) for text in tokens}
        self._shared = self._with_names()
        self._meant = self._check(self._shared)

    def encode(self, text: str, callers: Iterable[Span], *, special: bool) -> list[int]:
        """Return the tokens of a text. Markup at the spans `callers` was written by the client and
        stays plain text. `special` as in `ModelTokenizer.encode`."""
        theirs = frozenset(callers)
        pieces, at, count = list[str](), 0, 0
        for start, end in self._spellings.find(text):
            if (start, end) not in theirs:
                pieces += (text[at:start], self._names[text[start:end]])
                at = end
                count += 1
        renamed = "".join([*pieces, text[at:]])
        tokens = self._encoded(self._shared, renamed, special=False)
        if sum(token in self._ids for token in tokens) == count:
            return self._encoded(self._shared, renamed, special=True) if special else tokens
        return self._encoded(self._apart, renamed, special=special)

    def _encoded(self, tokenizer: Any, text: str, *, special: bool) -> list[int]:
        ids = tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids
        return [self._meant.get(token, token) for token in ids] if self._meant else ids

    def _with_names(self) -> Any:
        """Return a tokenizer with the new names that shares the vocabulary. Added tokens that the
        vocabulary lacks come first and so keep their ids."""
        backend, model = self._backend, self._backend.model
        made: Any = Tokenizer(model)
        for part in ("normalizer", "pre_tokenizer", "post_processor"):
            if (value := getattr(backend, part)) is not None:
                setattr(made, part, value)
        added = sorted(backend.get_added_tokens_decoder().items())
        lacking = [token for _, token in added if model.token_to_id(token.content) is None]
        others = [token for _, token in added if model.token_to_id(token.content) is not None]
        made.add_tokens([self._named(token) for token in (*lacking, *others)])
        return made

    def _named(self, token: AddedToken) -> AddedToken:
        return AddedToken(
            self._names.get(token.content, token.content),
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized,
            special=token.special,
        )

    def _check(self, made: Any) -> Mapping[int, int]:
        """Return, for each token whose id differs from the original tokenizer's, the original
        token. Raises ValueError."""
        meant: dict[int, int] = {}
        for original, token in self._backend.get_added_tokens_decoder().items():
            renamed = made.token_to_id(self._names.get(token.content, token.content))
            if renamed != original:
                if self._backend.model.id_to_token(renamed) is not None:
                    raise ValueError(f"the vocabulary already has the id {renamed}")
                meant[renamed] = original
        return meant

    @cached_property
    def _apart(self) -> Any:
        """Return a copy of the tokenizer that has the new names of markup tokens in the model's
        vocabulary too."""
        made: Any = Tokenizer.from_str(_renamed(self._backend.to_str(), self._names))
        made.no_truncation()
        made.no_padding()
        for text, name in self._names.items():
            if made.token_to_id(name) != self._backend.token_to_id(text):
                raise ValueError(f"the token of {text} cannot be distinguished from its text")
        return made


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """Return a tokenizer's JSON with the added tokens of `names` renamed, in its model's vocabulary
    too."""
    contents: dict[str, Any] = json.loads(text)
    for token in contents["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model: dict[str, Any] = contents["model"]
    vocabulary: Any = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(name, name): index for name, index in vocabulary.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [[names.get(entry[0], entry[0]), *entry[1:]] for entry in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [entry for entry in model["merges"] if not _makes(entry, names)]
    return json.dumps(contents, ensure_ascii=False)


def _makes(merge: str | Sequence[str], names: Mapping[str, str]) -> bool:
    """Return whether a merge uses or makes a markup token."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in names or right in names or left + right in names
