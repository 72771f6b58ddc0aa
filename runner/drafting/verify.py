"""Verification by coupling: keep a draft while the model says the same.

Pure. At each drafted position the model draws its own token with the random key of (seed,
position), which is the token that it would have drawn without drafts, as long as all tokens before
it are right. So the kept tokens are always the model's own, with greedy and with sampled decoding.

Source: with equal random numbers on both sides this is the "common random numbers" form of
speculative sampling; Leviathan's and Chen's rejection sampling keeps the distribution, not the
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from bus.wire.ids import TokenId

T = TypeVar("T")


def accepted(
    drafted: Sequence[TokenId], verified: Sequence[TokenId], items: Sequence[T]
) -> list[T]:
    """Return the items to keep after one verified draft: 1 to len(drafted) + 1 of them.

    `drafted` is (k,). `verified` is (k + 1,): the model's own token after the row's last token and
    after each drafted one. `items` belong to `verified`, one each. A token is valid while all
    drafted tokens before it equal the model's.
    """
    count = 1
    for guess, own in zip(drafted, verified, strict=False):
        if guess != own:
            break
        count += 1
    return list(items[:count])
