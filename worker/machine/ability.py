"""Decides whether a runner can start on this node. If not, it says why and what to do.

Pure. A supervisord that has not answered for some seconds starts no runner. If a runner could not
import MLX, the next runners are expected to fail too, for a while or until a runner is ready.
"""

from __future__ import annotations

from dataclasses import dataclass

CANNOT_IMPORT = 77
"""Exit code, from `runner.lifecycle`, of a runner that could not import MLX."""
SILENT_S = 3.0
BELIEVED_S = 600.0


@dataclass(slots=True)
class Ability:
    """The obstacles to starting runners on this node. `silent_since` is the instant since which
    supervisord has not answered, `trouble` its error. `mlx_error` is the error with which the last
    runner failed to import MLX; it counts until `until`."""

    trouble: str = ""
    silent_since: float = 0.0
    mlx_error: str = ""
    until: float = 0.0

    def note_supervisor(self, trouble: str, now: float) -> None:
        """Record supervisord's error; the empty text means that it answered."""
        if trouble and not self.trouble:
            self.silent_since = now
        self.trouble = trouble

    def note_ended(self, exit_code: int | None, message: str, now: float) -> None:
        """Record with which exit code and last message a runner ended."""
        if exit_code == CANNOT_IMPORT:
            self.mlx_error, self.until = message, now + BELIEVED_S

    def note_ready(self) -> None:
        """Record that a runner has loaded its model, so MLX can be imported."""
        self.mlx_error = ""

    def why_not(self, now: float) -> str:
        """Return why no runner can start on this node, as words to put after the node's name; empty
        if one can start."""
        if self.trouble and now - self.silent_since >= SILENT_S:
            return f"cannot start runners: {self.trouble}; run `shoal restart` there"
        if self.mlx_error and now < self.until:
            return f"cannot run models: {self.mlx_error}; run `shoal doctor` there"
        return ""
