"""What the tests of some files share: made when a test first asks for it, closed when the next test
is in none of these files.

pytest has no scope for several files that are no package. A fixture of the session would keep idle
nodes beside all other tests, and a browser's event loop in a thread where others want theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")


class SharedThings:
    """Things by name; the last one made is the first one closed."""

    def __init__(self) -> None:
        self._made: dict[str, object] = {}
        self._open = ExitStack()

    def get(self, name: str, make: Callable[[], AbstractContextManager[T]]) -> T:
        """Return the thing of this name; enter `make()` for it where there is none."""
        if name not in self._made:
            self._made[name] = self._open.enter_context(make())
        return self._made[name]  # type: ignore[return-value]

    def close(self) -> None:
        """Close all of them; they can be made again."""
        self._made.clear()
        self._open.close()

    def close_when_left(
        self, following: pytest.Item | None, is_inside: Callable[[Path], bool]
    ) -> None:
        """Close all when the following test does not lie in one of the files that share."""
        if following is None or not is_inside(following.path):
            self.close()
