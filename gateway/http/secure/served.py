"""Talks to the disk: the pair that this gateway serves with, looked at each second.

gunicorn's master process and each HTTP process look for themselves: a process that is forked later
begins with what its parent has. The master alone tells, in the log and to this user's other
processes, once of each thing.
"""

from __future__ import annotations

from bus.links.certificates import standing
from bus.links.tls_files import PairWatch, TlsFiles, TlsPair, tell_served
from bus.process.clock import wall
from bus.process.logs import Log
from bus.wire.errors import ConfigError


class ServedPair:
    """What HTTPS serves with. Raises ConfigError at first where that is no good."""

    def __init__(self, files: TlsFiles, folder: str, log: Log) -> None:
        self._folder = folder
        self._log = log
        self._said = ("", "")
        """What was said last of the files, and of the certificate."""
        try:
            self._watch = PairWatch(files)
        except ConfigError as error:
            tell_served(folder, None, str(error))
            raise
        tell_served(folder, self.pair, "")
        self._tell()

    @property
    def pair(self) -> TlsPair:
        """Return the pair for new connections."""
        return self._watch.pair

    def look(self) -> None:
        """Take another pair where there is a good one."""
        self._watch.look()

    def look_and_tell(self) -> None:
        """Take another pair where there is a good one, and tell what is new."""
        if self._watch.look():
            tell_served(self._folder, self.pair, "")
            self._log.info("HTTPS now serves with a new certificate")
        self._tell()

    def _tell(self) -> None:
        trouble, ending = self._watch.trouble, standing(self.pair.valid, wall())
        said, self._said = self._said, (trouble, ending)
        if trouble != said[0]:
            tell_served(self._folder, self.pair, trouble)
            if trouble:
                self._log.warning(f"{trouble} (HTTPS keeps the previous certificate)")
        if ending and ending != said[1]:
            self._log.warning(f"the certificate of HTTPS {ending}")
