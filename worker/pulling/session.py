"""Talks to a hub and the disk: runs one pull, from reading the hub's listing to moving the finished
model into the models folder.

A pull of some layers first fetches the headers of the weights, which say where the tensors of these
layers are, and then only the pieces with these tensors. Its model stays a partial one.
"""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from bus.wire.messages.readings import PullForecast, PullPhase, PullState
from bus.wire.messages.weights import PIECE_BYTES
from worker.models.layer_bytes import SUFFIX, Layers, wanted_pieces
from worker.models.manifest import piece_count
from worker.models.passed_over import CONFIG
from worker.pulling.fetching.fetch import TELL_S, Fetch, FileHash, disk_failure
from worker.pulling.fetching.files import MOST_SPOILT, PullFiles
from worker.pulling.fetching.partial import Partial, pulled_revision, sweep_partial
from worker.pulling.fetching.ranges import RangeReader
from worker.pulling.forecast import Shelving, forecast_of, gguf_forecast_of
from worker.pulling.hub import Hub
from worker.pulling.listing import HubFile, HubListing, PullFailed
from worker.pulling.order import HERE_ALREADY, PullOrder
from worker.pulling.patience import Patience
from worker.transfer.download import ReceivedBytes

Answer = TypeVar("Answer")


class PullSession:
    """One pull. `tell` is called in the thread of `run`. An order with `holds` waits after its
    forecast until `goes` is set."""

    def __init__(
        self, order: PullOrder, tell: Callable[[PullState], None], goes: threading.Event
    ) -> None:
        self._order = order
        self._tell = tell
        self._goes = goes
        self._hub = Hub()
        self._patience = Patience(time.monotonic(), order.timing)
        self._received = ReceivedBytes()
        self._listing: HubListing | None = None
        self._files: PullFiles | None = None
        self._read: dict[HubFile, bytes] = {}

    def run(self) -> PullState:
        """Run the pull until it is done or has failed; return its final state."""
        try:
            self._pull()
        except PullFailed as failure:
            return self._failed(failure)
        except OSError as error:
            return self._failed(disk_failure(error))
        note = HERE_ALREADY if self._order.here else ""
        return self._state("done").model_copy(update={"note": note})

    def _pull(self) -> None:
        order, models = self._order, Path(self._order.models)
        sweep_partial(models, time.time())
        listing = self._listing = self._list()
        if order.here:
            self._check_here(listing)
            return
        reader = RangeReader(
            listing.repository,
            listing.commit,
            self._hub.address,
            self._hub.headers(),
            order.connections,
        )
        if order.holds:
            self._hold(listing, reader)
        if order.layers is not None:
            self._pull_layers(listing, reader, order.layers)
            return
        partial = Partial(models, listing)
        have, checked = partial.open()
        files = PullFiles(listing, self._with_read(partial, have), checked)
        self._fetch(listing, reader, partial, files, self._state)
        reader.close()
        self._tell(self._state("publishing"))
        partial.publish()

    def _pull_layers(
        self, listing: HubListing, reader: RangeReader, wanted: tuple[int, int]
    ) -> None:
        """Fetch what a pipeline stage with these layers needs. Raises PullFailed, OSError."""
        for file in listing.files:
            if file.path == CONFIG:
                self._patiently(lambda file=file: self._small(listing, reader, file))
        layers = layers_of(listing, self._forecast(listing, reader), wanted)
        partial = Partial(Path(self._order.models), listing, in_part=True)
        sizes = {file.path: file.size_bytes for file in listing.files}
        heads = {
            path: b"\1" + bytes(piece_count(size) - 1)
            for path, size in sizes.items()
            if path.endswith(SUFFIX) and size
        }
        self._fetch_pieces(listing, reader, partial, heads, lambda _: self._state("listing"))
        pieces = wanted_pieces(partial.heads(), sizes, layers)
        self._fetch_pieces(listing, reader, partial, pieces, self._state)
        reader.close()
        self._tell(self._state("publishing"))
        partial.keep(layers)

    def _fetch_pieces(
        self,
        listing: HubListing,
        reader: RangeReader,
        partial: Partial,
        wanted: Mapping[str, bytes],
        state_of: Callable[[PullPhase], PullState],
    ) -> None:
        """Fetch the `wanted` pieces of weights, and all other files. Raises PullFailed, OSError."""
        damaged: list[str] = []
        for _ in range(MOST_SPOILT):
            have, checked = partial.open()
            # a file that is completely here has a known hash, whichever pieces are needed
            pieces = {
                path: b"\1" * len(mask) if all(have[path]) else mask
                for path, mask in wanted.items()
            }
            files = PullFiles(listing, self._with_read(partial, have), checked, pieces)
            self._fetch(listing, reader, partial, files, state_of)
            self._tell(state_of("checking"))
            if not (damaged := partial.find_damage(pieces)):
                return
        text = f"the disk does not store data written to {', '.join(damaged)}"
        raise PullFailed("broken", text)

    def _fetch(
        self,
        listing: HubListing,
        reader: RangeReader,
        partial: Partial,
        files: PullFiles,
        state_of: Callable[[PullPhase], PullState],
    ) -> None:
        """Fetch and verify `files`, and tell the progress. Raises PullFailed, OSError."""
        self._files = files
        self._check_room(Path(self._order.models), files)
        url_of = self._hub.url_of
        fetch = Fetch(listing, files, partial, url_of, self._received, self._patience)
        fetch.run(reader, self._order.connections, state_of, self._tell)

    def _list(self) -> HubListing:
        order = self._order
        return self._patiently(
            lambda: self._hub.list(order.model, order.revision, order.memory_bytes)
        )

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Return the answer of a hub, which is asked again after a failure. Raises PullFailed."""
        while True:
            self._tell(self._state("listing"))
            try:
                answer = ask()
            except PullFailed as failure:
                end = self._patience.failed(failure, time.monotonic())
                if end is not None:
                    raise end from None
            else:
                self._patience.came(time.monotonic())
                return answer
            while time.monotonic() < self._patience.paused_until_at:
                self._tell(self._state("listing"))
                time.sleep(TELL_S)

    def _hold(self, listing: HubListing, reader: RangeReader) -> None:
        """Report the forecast and wait to be resumed. Raises PullFailed, OSError."""
        forecast = self._forecast(listing, reader)
        self._tell(self._state("listing").model_copy(update={"forecast": forecast}))
        self._goes.wait()
        self._patience.came(time.monotonic())

    def _forecast(self, listing: HubListing, reader: RangeReader) -> PullForecast:
        """Return the forecast, from the small files or the headers of GGUF files. Raises OSError,
        and PullFailed for a GGUF file that is no language model."""
        order = self._order
        shelving = Shelving(Path(order.models), order.float32, order.kv)
        if listing.ggufs:
            return gguf_forecast_of(
                listing,
                lambda file: reader.beginning(self._hub.url_of(listing, file), file),
                shelving,
            )
        return forecast_of(listing, lambda file: self._small(listing, reader, file), shelving)

    def _small(self, listing: HubListing, reader: RangeReader, file: HubFile) -> bytes:
        """Return the content of a small file. Raises PullFailed."""
        if file in self._read:
            return self._read[file]
        content = reader.read(self._hub.url_of(listing, file), file)
        hashed = FileHash(file)
        hashed.add(content)
        if hashed.digest() != file.digest:
            text = f"{file.path} arrived with a hash that differs from the list"
            raise PullFailed("spoilt", text)
        self._read[file] = content
        return content

    def _with_read(self, partial: Partial, have: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Put files that were read while the pull was held into the partial model; return the
        pieces present afterwards. Raises OSError."""
        pieces = dict(have)
        for file, content in self._read.items():
            if 0 < len(content) <= PIECE_BYTES and not any(pieces[file.path]):
                partial.write(file, 0, content)
                pieces[file.path] = b"\1"
                self._received.total += len(content)
        return pieces

    def _check_here(self, listing: HubListing) -> None:
        """Raise PullFailed if the existing model is not at the requested commit."""
        here = pulled_revision(Path(self._order.here))
        if here == listing.commit:
            return
        origin = "from elsewhere" if here is None else f"at {here[:12]}"
        text = (
            f"{listing.model} is already here {origin} ({self._order.here}), not at "
            f"{listing.commit[:12]}; delete it first with `shoal rm {listing.model}`"
        )
        raise PullFailed("conflict", text)

    def _check_room(self, models: Path, files: PullFiles) -> None:
        free, lacking = shutil.disk_usage(models).free, files.total_bytes - files.done_bytes
        missing = lacking + self._order.margin_bytes - free
        if missing > 0:
            text = (
                f"not enough disk space at {models}: {missing:,} bytes short ({lacking:,} "
                f"to download, {self._order.margin_bytes:,} to stay free, {free:,} "
                "free)"
            )
            raise PullFailed("disk_full", text)

    # --- how far it is ---

    def _failed(self, failure: PullFailed) -> PullState:
        return self._state("failed").model_copy(
            update={
                "reason": failure.reason,
                "message": failure.message,
                "retry_after_s": failure.retry_after_s,
                "note": "",
            }
        )

    def _state(self, phase: PullPhase) -> PullState:
        listing, files, now = self._listing, self._files, time.monotonic()
        total_bytes = 0 if listing is None else listing.total_bytes
        pause_s = self._patience.paused_until_at - now
        last = self._patience.last
        waits = ""
        if last is not None and pause_s > 0:
            waits = f"waiting {math.ceil(pause_s)} s: {last.message}"
        return PullState(
            model=self._order.model,
            phase=phase,
            hub=self._hub.address,
            revision="" if listing is None else listing.commit,
            digest="" if listing is None else listing.digest,
            files=0 if listing is None else len(listing.files),
            done_bytes=0 if files is None else files.done_bytes,
            total_bytes=total_bytes if files is None else files.total_bytes,
            layers=self._order.layers,
            choice="" if listing is None else listing.choice,
            received_bytes=self._received.total,
            bytes_per_s=self._received.per_s(now) if phase == "fetching" else 0.0,
            note=waits,
        )


def layers_of(listing: HubListing, forecast: PullForecast, wanted: tuple[int, int]) -> Layers:
    """Return the layers [first, last) to fetch. Raises PullFailed if the model has no such layers,
    or if shoal does not load its family from only some of them."""
    (first, last), card, model = wanted, forecast.card, listing.model
    if card is None:
        raise PullFailed("unfit", f"the layers of {model} are unknown: {forecast.why}")
    if not 0 <= first < last <= card.layers:
        text = f"{model} has {card.layers} layers; layers {first} to {last - 1} do not exist"
        raise PullFailed("unfit", text)
    if not card.fetched_in_parts:
        text = (
            f"shoal cannot load models of the family {card.family} from only some of their "
            f"layers; pull all of {model}"
        )
        raise PullFailed("unfit", text)
    return Layers(first, last, card.layers)
