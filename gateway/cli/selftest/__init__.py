"""`shoal selftest`: checks shoal on this machine, in a temporary home.

`runner.mlx.selftest` measures, `verdicts` judges, and this room starts nodes and shows the lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.cli.selftest.selftest import selftest

__all__ = ["selftest"]
_HOMES = {"selftest": "gateway.cli.selftest.selftest"}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(import_module(_HOMES[name]), name)
