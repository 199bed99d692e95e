"""Archive calls on the event loop: a tree read as a tar, and a tar extracted, in short jobs with flow control.

At most one job of a call is under way. A cancelled call closes its files as soon as its job is done, and continues the
processes that it stopped.
"""

from __future__ import annotations

from . import wire
from .failure import Failure
from .tree import Hold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .archive_reader import ArchiveReader
    from .core import RunnerCore
    from .extraction import Extraction

MAX_ARCHIVES = 4
"""How many archives are read and extracted at once, because each holds descriptors open."""


def _open_reader(path: str) -> ArchiveReader:
    from .archive_reader import ArchiveReader  # loads tarfile, which most sandboxes never need

    return ArchiveReader(path)


def _open_extraction(path: str) -> Extraction:
    from .extraction import Extraction

    return Extraction(path)


def _check_room(runner: RunnerCore, action: str, path: str) -> None:
    if runner.archives >= MAX_ARCHIVES:
        raise Failure("Busy", f"cannot {action} {path}: {MAX_ARCHIVES} archives are under way; try again")


class Archiving:
    """Sends a tree as a tar: first an empty frame, then chunks as the daemon grants credit, then the result."""

    def __init__(self, runner: RunnerCore, call: int, path: str, hold: bool) -> None:
        _check_room(runner, "archive", path)
        self._runner = runner
        self._call = call
        self._path = path
        self._credit = wire.WINDOW_BYTES
        self._reader: ArchiveReader | None = None
        self._hold: Hold | None = None
        self._busy = True
        self._cancelled = False
        runner.archives += 1
        if hold:
            self._hold = Hold(runner.hub)
            self._hold.begin(self._open)
        else:
            self._open()

    def take_data(self, data: bytes) -> None:
        raise wire.WireError("data for a call that takes none")

    def take_end(self) -> None:
        return

    def take_credit(self, size_bytes: int) -> None:
        self._credit += size_bytes
        self._go_on()

    def cancel(self) -> None:
        self._cancelled = True
        if not self._busy:
            self._close()

    def _open(self) -> None:
        if self._cancelled:
            self._close()
        else:
            self._runner.workers.submit(lambda: _open_reader(self._path), self._opened, self._refused)

    def _opened(self, reader: ArchiveReader) -> None:
        self._busy = False
        self._reader = reader
        if self._cancelled:
            self._close()
            return
        self._runner.connection.send(wire.pack(wire.DATA, self._call, {}))
        self._go_on()

    def _go_on(self) -> None:
        reader = self._reader
        if self._busy or self._cancelled or self._credit <= 0 or reader is None:
            return
        if self._runner.connection.is_congested:
            self._runner.connection.when_drained(self._go_on)
            return
        self._busy = True
        size = min(self._credit, wire.CHUNK_BYTES)
        self._runner.workers.submit(lambda: reader.read(size), self._send, self._refused)

    def _send(self, result: tuple[bytes, bool]) -> None:
        piece, is_over = result
        self._busy = False
        if self._cancelled:
            self._close()
            return
        if piece:
            self._credit -= len(piece)
            self._runner.connection.send(wire.pack(wire.DATA, self._call, None, piece))
        if is_over:
            self._close()
            self._runner.connection.send(wire.pack(wire.RESULT, self._call, {}))
        else:
            self._go_on()

    def _refused(self, failure: Failure) -> None:
        self._close()
        if not self._cancelled:
            self._runner.refuse(self._call, failure)

    def _close(self) -> None:
        self._busy = True  # no more jobs
        self._runner.archives -= 1
        self._runner.forget(self._call, self)
        if self._reader is not None:
            self._reader.close()
        if self._hold is not None:
            self._hold.release()


class Extracting:
    """Receives a tar in chunks and extracts each. What is extracted before a failure or a cancellation stays."""

    def __init__(self, runner: RunnerCore, call: int, path: str) -> None:
        _check_room(runner, "extract into", path)
        self._runner = runner
        self._call = call
        self._extraction: Extraction | None = None
        self._chunks: list[bytes] = []
        self._ended = False
        self._cancelled = False
        self._busy = True
        runner.archives += 1
        runner.workers.submit(lambda: _open_extraction(path), self._opened, self._refused)

    def take_data(self, data: bytes) -> None:
        if data and not self._cancelled:
            self._chunks.append(data)
            self._go_on()

    def take_end(self) -> None:
        self._ended = True
        self._go_on()

    def take_credit(self, size_bytes: int) -> None:
        return

    def cancel(self) -> None:
        self._cancelled = True
        if not self._busy:
            self._close()

    def _opened(self, extraction: Extraction) -> None:
        self._busy = False
        self._extraction = extraction
        if self._cancelled:
            self._close()
        else:
            self._go_on()

    def _go_on(self) -> None:
        extraction = self._extraction
        if self._busy or self._cancelled or extraction is None:
            return
        if self._chunks:
            data = self._chunks.pop(0)
            self._busy = True
            self._runner.workers.submit(lambda: extraction.feed(data), self._fed, self._refused)
        elif self._ended:
            self._busy = True
            self._runner.workers.submit(extraction.finish, self._finished, self._refused)

    def _fed(self, size_bytes: int) -> None:
        self._busy = False
        if self._cancelled:
            self._close()
            return
        self._runner.connection.send(wire.pack_credit(self._call, size_bytes))
        self._go_on()

    def _finished(self, summary: dict[str, Any]) -> None:
        self._close()
        if not self._cancelled:
            self._runner.connection.send(wire.pack(wire.RESULT, self._call, summary))

    def _refused(self, failure: Failure) -> None:
        self._close()
        if not self._cancelled:
            self._cancelled = True
            self._runner.refuse(self._call, failure)

    def _close(self) -> None:
        self._busy = True  # no more jobs
        self._chunks.clear()
        self._runner.archives -= 1
        self._runner.forget(self._call, self)
        if self._extraction is not None:
            self._runner.workers.submit(self._extraction.close, lambda _result: None, lambda _failure: None)
