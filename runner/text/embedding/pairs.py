"""Talks to the tokenizer of a reranker: to its file, once, when it is opened, or to an engine that
has the tokenizer.

A query and a document become one input of the model. Only the end of a document can be cut off.
Nothing changes after opening, so any thread may use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bus.wire.errors import BadRequest, ContextOverflow
from runner.text.embedding.inputs import MOST_SPECIAL, TOKENIZER, file_tokenizer, lone_surrogate
from runner.text.opening import TokenizerError, panics_told
from runner.text.prepared import RankedPair

PROBE = "a"
Ids = tuple[int, ...]


class PairInputs:
    """The tokeniser of a reranker. `encode` returns the ids of a text without special tokens."""

    def __init__(
        self,
        encode: Callable[[str], Sequence[int]],
        join: Callable[[Sequence[int], Sequence[int]], tuple[Sequence[int], int]],
        *,
        max_tokens: int,
    ) -> None:
        """`join` makes an input from the tokens of query and document. It returns the input's
        tokens, and how many of them have the first token type."""
        self.max_tokens = max_tokens
        self.encode = encode
        self.join = join

    @classmethod
    def load(cls, folder: Path, max_tokens: int) -> PairInputs:
        """Open the tokenizer.json in a folder. Raises TokenizerError."""
        tokenizer = file_tokenizer(folder)

        def encode(text: str) -> list[int]:
            with panics_told():
                return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids

        with panics_told():
            dressed = tokenizer.encode(PROBE, PROBE)
        before, middle, after = _around(encode(PROBE), dressed.ids)
        second = dressed.type_ids.index(1) if 1 in dressed.type_ids else len(dressed.ids)
        typed = second < len(dressed.ids)

        def join(query: Sequence[int], document: Sequence[int]) -> tuple[Ids, int]:
            first = (*before, *query, *middle)
            tokens = (*first, *document, *after)
            return tokens, len(first) if typed else len(tokens)

        if typed and second != len(before) + len(encode(PROBE)) + len(middle):
            raise TokenizerError(
                f"{TOKENIZER} must give the second token type to the document, and not to the query"
            )
        return cls(encode, join, max_tokens=max_tokens)

    @classmethod
    def beside(
        cls, encode: Callable[[str, bool], Sequence[int]], *, around: int, max_tokens: int
    ) -> PairInputs:
        """Use the tokenizer of an engine, which adds `around` special tokens to a query and a
        document. Only the numbers of tokens are right, not the ids: the engine gets the texts.
        `encode` may raise OSError."""

        def join(query: Sequence[int], document: Sequence[int]) -> tuple[Sequence[int], int]:
            count = len(query) + len(document) + around
            return range(count), count

        return cls(lambda text: encode(text, False), join, max_tokens=max_tokens)

    def of_query(self, query: str) -> QueryInputs:
        """Return the tokeniser of documents for a query. Raises BadRequest and ContextOverflow if
        the query is invalid, or leaves no room for a document."""
        tokens = _encoded(self.encode, query)
        whole = len(self.join(tokens, ())[0])
        if whole >= self.max_tokens:
            raise ContextOverflow(prompt_tokens=whole, limit_tokens=self.max_tokens)
        return QueryInputs(self, query, tokens)


class QueryInputs:
    """The tokeniser of the documents of one query."""

    def __init__(self, pairs: PairInputs, query: str, tokens: Sequence[int]) -> None:
        self._pairs = pairs
        self._query = query
        self._tokens = tokens

    def prepare(self, text: str | Sequence[int], cut: bool) -> RankedPair:
        """Return the tokens of the query and a document. `cut`: cut the end of a document that is
        too long. Raises ContextOverflow if it may not be cut, and BadRequest for invalid Unicode
        and for token ids."""
        if not isinstance(text, str):
            raise BadRequest("a document must be a text, not token ids")
        pair = self._pair(text)
        limit = self._pairs.max_tokens
        if len(pair.tokens) <= limit:
            return pair
        if not cut:
            raise ContextOverflow(prompt_tokens=len(pair.tokens), limit_tokens=limit)
        fits, too_many = 0, len(text)
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if len(self._pair(text[:middle]).tokens) <= limit:
                fits = middle
            else:
                too_many = middle
        return self._pair(text[:fits], cut_off=True)

    def _pair(self, document: str, *, cut_off: bool = False) -> RankedPair:
        tokens, second = self._pairs.join(self._tokens, _encoded(self._pairs.encode, document))
        return RankedPair(tokens, second, self._query, document, cut_off)


def _encoded(encode: Callable[[str], Sequence[int]], text: str) -> Sequence[int]:
    if lone_surrogate(text):
        raise BadRequest("the text contains half of a surrogate pair, which is not a character")
    try:
        return encode(text)
    except TokenizerError as error:
        raise BadRequest(f"this text cannot be tokenised: {error}") from error


def _around(probe: Sequence[int], dressed: Sequence[int]) -> tuple[Ids, Ids, Ids]:
    """Return the special tokens before the query, between query and document, and after the
    document. Raises TokenizerError if there are more than `MOST_SPECIAL`, or none between."""
    size, whole = len(probe), list(dressed)
    places = [at for at in range(len(whole) - size + 1) if whole[at : at + size] == list(probe)]
    if size and len(places) == 2 and len(whole) - 2 * size <= MOST_SPECIAL:
        first, second = places
        if first + size < second:
            middle = tuple(whole[first + size : second])
            return tuple(whole[:first]), middle, tuple(whole[second + size :])
    raise TokenizerError(
        f"{TOKENIZER} must put query and document unchanged between at most {MOST_SPECIAL} special "
        "tokens, with at least one between the two"
    )
