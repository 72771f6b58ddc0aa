"""Talks to gunicorn: extends its master process and its HTTP processes (workers).

This module works around three faults of gunicorn (27.0, measured). First, asyncio's `create_server`
overwrites the backlog that gunicorn has set. Second, after SIGTERM idle connections block the
worker until it is killed, and the application is not notified. Third, a worker whose master process
has died waits as long. With this module, an HTTP process lets streams finish for a while, ends the
remaining streams with an error, and exits.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false, reportMissingSuperCall=false
# (gunicorn carries no type information)
from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.glogging import Logger
from gunicorn.workers import gasgi

from bus.links.tls_files import forget_served
from bus.patience import LostTime
from bus.process.clock import now as clock_now
from bus.process.identity import RoleLock
from bus.process.logs import Log, story_of
from bus.service import die_with_supervisor
from gateway.http.connection import Connection
from gateway.http.listener import BACKLOG, open_listeners, open_socket, prepare
from gateway.http.secure import Door, ServedPair
from gateway.view.earlier_counts import go_on
from gateway.view.options import Options

KEPT_S = 7
"""Seconds that an idle connection stays open. This is longer than the 5 s of the client library
httpx, so the client closes first. If the server closed a connection while a request was arriving,
the request would fail."""
GRACE_S = 3.0
"""Seconds between the end of the drain time (`drain_s`) and the moment when gunicorn kills the
process."""
STOOD_STILL_S = 1.0
"""If two checks of the master process are further apart than this, the process was suspended
between them."""
LINGER_S = 0.3
"""Once no request is open, the process waits this long before it exits, so that sockets can send
their last bytes."""


setattr(gasgi, "ASGIProtocol", Connection)  # noqa: B010 - the class of a worker's connections; gunicorn has no setting for it


class HttpProcess(gasgi.ASGIWorker):
    """An HTTP process: gunicorn's ASGI worker, which also keeps the backlog, drains open requests
    and exits cleanly."""

    _looking: asyncio.Future[None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connections: set[Connection] = set()
        """The open connections."""

    def _get_ssl_context(self) -> None:
        """If this gateway serves TLS, create a `Door` for each listener instead of gunicorn's
        servers. The base class calls this method before it creates its servers."""
        app = cast(_Gunicorn, self.app)
        if app.served is not None:
            for listener in cast(list[Any], self.sockets):
                prepare(listener.sock, self.cfg.backlog)
                door = Door(self, listener.sock, app.served, _log_of(app.options))
                cast(list[Any], self.servers).append(door)
            self.sockets = []

    def notify(self) -> None:
        """Send the heartbeat, which gunicorn does each second. Also check the TLS files, and
        restore the backlog of the listeners at the first call."""
        served = cast(_Gunicorn, self.app).served
        if served is not None and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().run_in_executor(None, served.look)
        if self.servers and not getattr(self, "_prepared", False):
            self._prepared = True
            for listener in cast(list[Any], self.sockets):
                prepare(listener.sock, self.cfg.backlog)
        super().notify()

    def handle_exit_signal(self) -> None:
        """Begin to drain on SIGTERM: from now on, new requests are refused."""
        super().handle_exit_signal()
        self._tell("on_drain")

    def handle_quit_signal(self) -> None:
        """End open requests with an error immediately, on SIGINT and SIGQUIT."""
        self._tell("on_end")
        super().handle_quit_signal()

    async def _shutdown(self) -> None:
        self.alive = False  # each connection closes after its answer, also in an orphaned process
        if self.ppid != os.getppid():
            self._tell("on_end")
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self.cfg.graceful_timeout - GRACE_S / 2
        idle_since = loop.time()
        while self.nr_conns > 0 and loop.time() < give_up_at:
            if self._is_busy():
                idle_since = loop.time()
            if loop.time() - idle_since >= LINGER_S:
                break
            await asyncio.sleep(0.02)
        for connection in list(self.connections):
            connection.close()  # a later request would find no service
        if self.lifespan:
            await self.lifespan.shutdown()

    def _tell(self, what: str) -> None:
        callback = self.state.get(what)
        if callback is not None:
            callback()

    def _is_busy(self) -> bool:
        busy = self.state.get("is_busy")
        return bool(busy is not None and busy())


class GunicornLog(Logger):
    """Writes gunicorn's messages to our log."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self._lines = Log(node=str(cfg.proc_name).rpartition(" ")[2], process="gateway")

    def critical(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        self._lines.critical(_text(msg, args))

    def error(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        self._lines.error(_text(msg, args))

    def warning(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        self._lines.warning(_text(msg, args))

    def info(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Write a debug line, because gunicorn logs much."""
        self._lines.debug(_text(msg, args))

    def debug(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Drop the message."""

    def exception(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Log an error with the current exception. `args` are dropped, because they would repeat
        the exception."""
        error = sys.exc_info()[1]
        text = msg if isinstance(msg, str) else type(msg).__name__
        self._lines.error(text.partition(": %")[0], error="" if error is None else story_of(error))


def _text(message: Any, args: tuple[Any, ...]) -> str:
    try:
        return str(message) % args if args else str(message)
    except (TypeError, ValueError):
        return str(message)


class _Gunicorn(BaseApplication):
    """gunicorn with our settings. Each HTTP process builds the application for itself."""

    def __init__(
        self,
        options: Options,
        listeners: list[socket.socket],
        served: ServedPair | None,
        build: Callable[[Options], Any],
    ) -> None:
        self.options = options
        self.served = served
        self._build = build
        self._listeners = listeners
        super().__init__()

    def load_config(self) -> None:
        """Set the values that differ from gunicorn's defaults."""
        options = self.options
        settings: dict[str, Any] = {
            "bind": [f"fd://{listener.fileno()}" for listener in self._listeners],
            "workers": options.processes,
            "worker_class": HttpProcess,
            "asgi_loop": "uvloop",
            "asgi_lifespan": "on",
            "asgi_disconnect_grace_period": 1,
            "http_parser": "python",
            "keepalive": KEPT_S,
            "graceful_timeout": int(options.drain_s + GRACE_S),
            "timeout": 60,
            "backlog": BACKLOG,
            "control_socket_disable": True,
            "preload_app": False,
            "max_requests": 0,
            "logger_class": GunicornLog,
            "proc_name": f"shoal gateway {options.node}",
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        """Build the application. The worker calls this method after the fork, so that all sockets
        are created after the fork."""
        return self._build(self.options)


class _Arbiter(Arbiter):
    """gunicorn's master process. Each second it also checks the TLS files and the lock that allows
    only one gateway per node.

    If the master process was suspended (the node was halted, the machine slept), its HTTP processes
    could not send heartbeats either. So their timeout starts again."""

    def __init__(self, app: Any, role: RoleLock) -> None:
        super().__init__(app)
        self._role = role
        self._lost = LostTime()
        self._spares_until = 0.0

    def murder_workers(self) -> None:
        """Kill HTTP processes whose heartbeats are late; check the lock and the TLS files."""
        now = clock_now()
        if self._lost.pass_by(now) > STOOD_STILL_S:
            self._spares_until = now + self.timeout
        if now >= self._spares_until:
            super().murder_workers()
        app = cast(_Gunicorn, self.app)
        self._role.look(_log_of(app.options))
        if app.served is not None:
            app.served.look_and_tell()


def serve(options: Options, role: RoleLock) -> None:
    """Serve until a signal stops the gateway; hold the lock `role` until then. Raises Unavailable
    if the port is in use, ConfigError if the TLS files are invalid."""
    served = served_pair(options)
    go_on(Path(options.metrics_folder), options.version)
    listeners = (
        open_listeners(options.host, options.port)
        if options.has_port
        else [open_socket(options.endpoints.http)]
    )
    arbiter = _Arbiter(_Gunicorn(options, listeners, served, _imported_app()), role)
    die_with_supervisor(lambda: _end_workers(arbiter))
    arbiter.run()


def _imported_app() -> Callable[[Options], Any]:
    """Import the application before the fork, so that all HTTP processes share its memory. The
    import is not at the top of the file, because supervisord imports this module before it starts
    the runners."""
    gc.disable()
    from gateway.http.app import build_app

    gc.freeze()
    gc.enable()
    return build_app


def served_pair(options: Options) -> ServedPair | None:
    """Return the certificate and key for HTTPS; None if the gateway serves plain HTTP. Raises
    ConfigError if the files are invalid."""
    folder = options.endpoints.folder
    if options.tls is None:
        forget_served(folder)
        return None
    return ServedPair(options.tls, folder, _log_of(options))


def _log_of(options: Options) -> Log:
    return Log(node=str(options.node), process="gateway", level=options.log_level)


def _end_workers(arbiter: Any) -> None:
    """End the HTTP processes and this process immediately, because the supervisor has ended."""
    for pid in list(arbiter.WORKERS):
        try:
            os.kill(pid, signal.SIGQUIT)
        except ProcessLookupError:
            continue
    os.kill(os.getpid(), signal.SIGTERM)
