"""Whether a runner can start on this node, as far as is known here; and if not, why and what to do.

Pure. A supervisord that has not answered for some seconds starts none. A runner that could not
import MLX speaks for those that would come, for a while: until one is ready, or it may be mended.
"""

from __future__ import annotations

from dataclasses import dataclass

CANNOT_IMPORT = 77
"""Exit code of `runner.lifecycle`."""
SILENT_S = 3.0
BELIEVED_S = 600.0


@dataclass(slots=True)
class Ability:
    """What keeps runners from starting. `silent_since` is when supervisord last ceased to answer,
    `trouble` what is wrong with it; `said` is what the last runner said of MLX, until `until`."""

    trouble: str = ""
    silent_since: float = 0.0
    said: str = ""
    until: float = 0.0

    def note_supervisor(self, trouble: str, now: float) -> None:
        """Note what is wrong with supervisord; nothing, where it has answered."""
        if trouble and not self.trouble:
            self.silent_since = now
        self.trouble = trouble

    def note_ended(self, exit_code: int | None, message: str, now: float) -> None:
        """Note how a runner ended."""
        if exit_code == CANNOT_IMPORT:
            self.said, self.until = message, now + BELIEVED_S

    def note_ready(self) -> None:
        """Note that a runner has loaded its model."""
        self.said = ""

    def why_not(self, now: float) -> str:
        """Return why no runner can start here, as it follows a node's name; empty where one can."""
        if self.trouble and now - self.silent_since >= SILENT_S:
            return f"cannot start any: {self.trouble}; `shoal restart` there starts all anew"
        if self.said and now < self.until:
            return f"cannot run any: {self.said}; `shoal doctor` there tells more"
        return ""
