"""Talks to the disk: loads the certificate and key of HTTPS, and checks each second whether the
files have changed.

gunicorn's master process and every HTTP process check the files independently. A new HTTP process
starts with the pair that the master process has loaded. Only the master process reports changes,
each one once: in the log, and in a file that this user's other processes read.
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
        """Load the pair again if the files have changed and are valid."""
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
