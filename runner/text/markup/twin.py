# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (some of tokenizers' functions are untyped)
"""The same tokenizer a second time, with its markup under names that no text spells.

Pure. A prompt in which the template's markup goes by those names becomes the tokens that it always
did, and markup that a caller spelled becomes text. The vocabulary is shared. A model that puts a
control token together from its letters, as Unigram's do, gets a copy of its own, made where it is
needed first: a second or two, and the memory of a second vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import AddedToken, Tokenizer

from runner.text.markup.spellings import Markup, Span


class Twin:
    """A tokenizer whose markup has other names."""

    def __init__(self, backend: Any, markup: Markup, secret: str) -> None:
        """Share the vocabulary of `backend`, a `tokenizers.Tokenizer`. `secret`, letters and
        digits, begins each name. Raises ValueError where markup would get other tokens."""
        self._backend = backend
        self._spellings = markup.all
        tokens = sorted(markup.control | markup.tags)
        self._names = {text: f"<{secret}{number:05}>" for number, text in enumerate(tokens)}
        self._ids = {backend.token_to_id(text) for text in tokens}
        self._shared = self._with_names()
        self._meant = self._check(self._shared)

    def encode(self, text: str, callers: Iterable[Span], *, special: bool) -> list[int]:
        """Return the tokens of a text in which the markup at `callers` is text. `special` as of
        `ModelTokenizer.encode`."""
        theirs = frozenset(callers)
        pieces, at, count = list[str](), 0, 0
        for start, end in self._spellings.find(text):
            if (start, end) not in theirs:
                pieces += (text[at:start], self._names[text[start:end]])
                at = end
                count += 1
        told = "".join([*pieces, text[at:]])
        found = self._encoded(self._shared, told, special=False)
        if sum(token in self._ids for token in found) == count:
            return self._encoded(self._shared, told, special=True) if special else found
        return self._encoded(self._apart, told, special=special)

    def _encoded(self, tokenizer: Any, text: str, *, special: bool) -> list[int]:
        ids = tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids
        return [self._meant.get(token, token) for token in ids] if self._meant else ids

    def _with_names(self) -> Any:
        """Return a tokenizer that shares the vocabulary. Added tokens that the vocabulary lacks
        come first: they get the ids that they have."""
        backend, model = self._backend, self._backend.model
        made: Any = Tokenizer(model)
        for part in ("normalizer", "pre_tokenizer", "post_processor"):
            if (known := getattr(backend, part)) is not None:
                setattr(made, part, known)
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
        """Return the tokens that are meant by those that have other ids. Raises ValueError."""
        meant: dict[int, int] = {}
        for known, token in self._backend.get_added_tokens_decoder().items():
            found = made.token_to_id(self._names.get(token.content, token.content))
            if found != known:
                if self._backend.model.id_to_token(found) is not None:
                    raise ValueError(f"the vocabulary has the id {found} already")
                meant[found] = known
        return meant

    @cached_property
    def _apart(self) -> Any:
        """A copy whose vocabulary has the other names, too."""
        made: Any = Tokenizer.from_str(_renamed(self._backend.to_str(), self._names))
        made.no_truncation()
        made.no_padding()
        for text, name in self._names.items():
            if made.token_to_id(name) != self._backend.token_to_id(text):
                raise ValueError(f"the token of {text} cannot be told from its text")
        return made


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """Return a tokenizer's JSON with the added tokens of `names` renamed, and the same names in
    the vocabulary of its model."""
    told: dict[str, Any] = json.loads(text)
    for token in told["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model: dict[str, Any] = told["model"]
    vocabulary: Any = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(name, name): index for name, index in vocabulary.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [[names.get(one[0], one[0]), *one[1:]] for one in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [one for one in model["merges"] if not _makes(one, names)]
    return json.dumps(told, ensure_ascii=False)


def _makes(merge: str | Sequence[str], names: Mapping[str, str]) -> bool:
    """Return whether a merge is of markup's tokens, or makes one."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in names or right in names or left + right in names
