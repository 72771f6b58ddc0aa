"""A proxy on this machine that counts the bytes that installers download through it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType

PIECE = 1 << 16


class CountingProxy:
    """An HTTP proxy for CONNECT, in a thread of its own. `downloaded_bytes` counts what came back:
    encrypted bytes, so a little more than the files have."""

    def __init__(self) -> None:
        self.downloaded_bytes = 0
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> CountingProxy:
        self._thread.start()
        assert self._ready.wait(10), "the proxy did not start"
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        self._thread.join(10)
        self._loop.close()

    def _serve(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._meet, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._servers.append(server)
        self._ready.set()
        self._loop.run_forever()

    async def _end(self) -> None:
        """End the connections that are still open, and the loop."""
        for server in self._servers:
            server.close()
        mine = asyncio.all_tasks() - {asyncio.current_task()}
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)
        self._loop.stop()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            host, _, port = head.split()[1].decode().rpartition(":")
            try:
                far_reader, far_writer = await asyncio.open_connection(host, int(port))
            except OSError:
                writer.write(b"HTTP/1.1 502 unreachable\r\n\r\n")
                return
            writers.append(far_writer)
            writer.write(b"HTTP/1.1 200 connected\r\n\r\n")
            await asyncio.gather(
                self._copy(reader, far_writer, counted=False),
                self._copy(far_reader, writer, counted=True),
            )
        except (asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            for each in writers:
                each.close()
            for each in writers:
                with contextlib.suppress(OSError):
                    await each.wait_closed()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool
    ) -> None:
        try:
            while piece := await reader.read(PIECE):
                self.downloaded_bytes += len(piece) if counted else 0
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
