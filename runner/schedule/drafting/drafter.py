"""The protocol of a drafter, an object that guesses the next tokens of one row.

Pure. A drafter sees every committed token of its row, in order. It also counts how often it is
right: it compares each token with its own guess before it adds the token. So its rates depend on
the tokens of the row alone, and not on which of its drafts were verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from bus.wire.ids import TokenId

LONGEST_DRAFT = 32
"""The most tokens of a draft."""

DraftSource = Literal["ngram", "prediction", "grammar", "draft_model", "remote"]


@dataclass(frozen=True, slots=True)
class Draft:
    """The guessed next tokens of a row. `rates[i]`, 0..1, is the chance that token i is right if
    all tokens before it are. `source`: `ngram` is copied from the row's own text, and `prediction`
    from the text that the client expects. `grammar` is the only text that the row's grammar allows.
    `remote` is a guess of another runner, and `draft_model` of this runner's draft model or MTP
    head. A `draft_model` draft has no tokens before its step has run: `rates` says how many to
    guess."""

    tokens: tuple[TokenId, ...]
    rates: tuple[float, ...]
    source: DraftSource = "ngram"

    @property
    def length(self) -> int:
        """Return the number of tokens, guessed or yet to be guessed."""
        return len(self.rates)


class Drafter(Protocol):
    """Guesses the next tokens of one row."""

    def take(self, tokens: Sequence[TokenId]) -> None:
        """Add committed tokens of the row, prompt included, in order."""
        ...

    def draft(self, most: int) -> Draft | None:
        """Return up to `most` guessed tokens; None if there is no guess."""
        ...


class NoDrafter:
    """Guesses nothing, so that only the text that a grammar implies is drafted."""

    def take(self, tokens: Sequence[TokenId]) -> None:
        """Do nothing: there is nothing to learn."""

    def draft(self, most: int) -> Draft | None:
        return None
