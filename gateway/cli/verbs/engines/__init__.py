"""Talks to the disk and to uv: `shoal engine`, environments for programs of `engines.toml`.

`engine` has the verbs, `building` changes the disk, and `uv` runs uv. The node takes no part.
"""

from gateway.cli.verbs.engines.engine import add, ls, rm

__all__ = ["add", "ls", "rm"]
