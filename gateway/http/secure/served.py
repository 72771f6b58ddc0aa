"""Talks to the disk: the certificate and key of HTTPS, checked each second.

gunicorn's master process and each HTTP process check for themselves; a process that is forked later
starts with its parent's pair. Only the master reports changes, once each: in the log, and to this
user's other processes.
"""

from __future__ import annotations

from bus.links.certificates import standing
from bus.links.tls_files import PairWatch, TlsFiles, TlsPair, tell_served
from bus.process.clock import wall
from bus.process.logs import Log
from bus.wire.errors import ConfigError


class ServedPair:
    """The certificate and key of HTTPS. The constructor raises ConfigError for an invalid pair."""

    def __init__(self, files: TlsFiles, folder: str, log: Log) -> None:
        self._folder = folder
        self._log = log
        self._reported = ("", "")
        """The latest reports: trouble with the files, expiry of the certificate."""
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
        """Load a new pair if the files have a valid one."""
        self._watch.look()

    def look_and_tell(self) -> None:
        """Load a new pair if the files have a valid one; report changes."""
        if self._watch.look():
            tell_served(self._folder, self.pair, "")
            self._log.info("HTTPS now serves with a new certificate")
        self._tell()

    def _tell(self) -> None:
        trouble, ending = self._watch.trouble, standing(self.pair.valid, wall())
        reported, self._reported = self._reported, (trouble, ending)
        if trouble != reported[0]:
            tell_served(self._folder, self.pair, trouble)
            if trouble:
                self._log.warning(f"{trouble} (HTTPS keeps the previous certificate)")
        if ending and ending != reported[1]:
            self._log.warning(f"the certificate of HTTPS {ending}")
