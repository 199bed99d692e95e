"""File calls on the event loop: one worker job after another, and bodies in chunks with flow control.

At most one job of a call is under way, so a file is never used by two threads at once. A cancelled call closes its file
and removes its draft as soon as its job is done. Long work is many short jobs, so that other calls take their turns.
"""

from __future__ import annotations

import os

from . import files, text, wire
from .failure import Failure, explain
from .tree_removal import TreeRemoval

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .core import RunnerCore
    from .worker import Submit

MAX_BODY_BYTES = text.MAX_EDIT_BYTES
MAX_BODIES_BYTES = 16_777_216
"""The bound of all calls together, because PID 1 must fit into a small sandbox."""


MAX_REMOVALS = 8
"""How many trees are removed at once, because each removal holds descriptors open."""


class FileCall:
    """A call with one job and one answer. `job` gets the body of the call, which is usually empty."""

    def __init__(
        self,
        runner: RunnerCore,
        call: int,
        job: Callable[[memoryview], tuple[dict[str, Any], bytes]],
        submit: Submit | None = None,
    ) -> None:
        self._runner = runner
        self._call = call
        self._job = job
        self._submit = submit or runner.workers.submit
        self._body = bytearray()
        self._is_complete = False
        self._cancelled = False

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled

    def take_data(self, data: bytes) -> None:
        if self._cancelled:
            return
        if len(self._body) + len(data) > MAX_BODY_BYTES:
            self._refuse(Failure("InvalidRequest", f"cannot accept this call: more than {MAX_BODY_BYTES} bytes"))
        elif self._runner.bodies_bytes + len(data) > MAX_BODIES_BYTES:
            self._refuse(Failure("Busy", "cannot accept this call: too many large calls are under way; try again"))
        else:
            self._body += data
            self._runner.bodies_bytes += len(data)
            self._runner.connection.send(wire.pack_credit(self._call, len(data)))

    def take_end(self) -> None:
        if self._cancelled:
            return
        self._is_complete = True
        self._submit(lambda: self._job(memoryview(self._body)), self._done, self._refused)

    def take_credit(self, size_bytes: int) -> None:
        return

    def cancel(self) -> None:
        self._cancelled = True
        if not self._is_complete:
            self._drop_body()

    def _refuse(self, failure: Failure) -> None:
        self._refused(failure)
        self._cancelled = True

    def _done(self, result: tuple[dict[str, Any], bytes]) -> None:
        self._drop_body()
        if not self._cancelled:
            self._runner.connection.send(wire.pack(wire.RESULT, self._call, result[0], result[1]))

    def _refused(self, failure: Failure) -> None:
        self._drop_body()
        if not self._cancelled:
            self._runner.refuse(self._call, failure)

    def _drop_body(self) -> None:
        self._runner.bodies_bytes -= len(self._body)
        self._body = bytearray()
        self._runner.forget(self._call, self)


class Reading:
    """Sends a file: first a frame with its stat, then chunks as the daemon grants credit, then the result."""

    def __init__(self, runner: RunnerCore, call: int, path: str, offset: int, length: int | None) -> None:
        self._runner = runner
        self._call = call
        self._path = path
        self._offset = offset
        self._left = files.MAX_FILE_BYTES if length is None else min(length, files.MAX_FILE_BYTES)
        self._credit = wire.WINDOW_BYTES
        self._fd = -1
        self._busy = True
        self._cancelled = False
        runner.workers.submit(lambda: files.open_for_reading(path), self._opened, self._refused)

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

    def _opened(self, result: tuple[int, dict[str, Any]]) -> None:
        self._busy = False
        self._fd, status = result
        if self._cancelled:
            self._close()
            return
        self._runner.connection.send(wire.pack(wire.DATA, self._call, status))
        self._go_on()

    def _go_on(self) -> None:
        if self._busy or self._cancelled or self._credit <= 0:
            return
        if self._runner.connection.is_congested:
            self._runner.connection.when_drained(self._go_on)
            return
        self._busy = True
        size = min(self._left, self._credit, wire.CHUNK_BYTES)
        self._runner.workers.submit(lambda: self._read(size), self._send, self._refused)

    def _read(self, size: int) -> bytes:
        try:
            return os.pread(self._fd, size, self._offset) if size else b""
        except OSError as error:
            raise explain(error, "read", self._path) from None

    def _send(self, piece: bytes) -> None:
        self._busy = False
        if self._cancelled:
            self._close()
        elif piece:
            self._offset += len(piece)
            self._left -= len(piece)
            self._credit -= len(piece)
            self._runner.connection.send(wire.pack(wire.DATA, self._call, None, piece))
            self._go_on()
        else:
            self._close()
            self._runner.connection.send(wire.pack(wire.RESULT, self._call, {}))

    def _refused(self, failure: Failure) -> None:
        self._close()
        if not self._cancelled:
            self._runner.refuse(self._call, failure)

    def _close(self) -> None:
        self._busy = True  # no more jobs
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._runner.forget(self._call, self)


class Writing:
    """Receives a file in chunks, then renames it into place. If it fails earlier, nothing is left behind."""

    def __init__(self, runner: RunnerCore, call: int, path: str, make_parents: bool, size: int | None) -> None:
        self._runner = runner
        self._call = call
        self._draft: files.Draft | None = None
        self._chunks: list[bytes] = []
        self._ended = False
        self._cancelled = False
        self._busy = True
        runner.workers.submit(lambda: files.Draft(path, make_parents, size=size), self._opened, self._refused)

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
            self._discard()

    def _opened(self, draft: files.Draft) -> None:
        self._busy = False
        self._draft = draft
        if self._cancelled:
            self._discard()
        else:
            self._go_on()

    def _go_on(self) -> None:
        draft = self._draft
        if self._busy or self._cancelled or draft is None:
            return
        if self._chunks:
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._busy = True
            self._runner.workers.submit(lambda: draft.write(data), self._written, self._refused)
        elif self._ended:
            self._busy = True
            self._runner.workers.submit(draft.commit, self._committed, self._refused)

    def _written(self, size_bytes: int) -> None:
        self._busy = False
        if self._cancelled:
            self._discard()
            return
        self._runner.connection.send(wire.pack_credit(self._call, size_bytes))
        self._go_on()

    def _committed(self, status: dict[str, Any]) -> None:
        self._runner.forget(self._call, self)
        if not self._cancelled:
            self._runner.connection.send(wire.pack(wire.RESULT, self._call, status))

    def _refused(self, failure: Failure) -> None:
        self._runner.forget(self._call, self)
        if not self._cancelled:
            self._cancelled = True
            self._runner.refuse(self._call, failure)

    def _discard(self) -> None:
        draft, self._draft = self._draft, None
        self._runner.forget(self._call, self)
        if draft is not None:
            self._runner.workers.submit(draft.discard, lambda _result: None, lambda _failure: None)


class Removing:
    """Removes a tree in short jobs until it is gone, the call is cancelled or a job fails."""

    def __init__(self, runner: RunnerCore, call: int, path: str) -> None:
        if runner.removals >= MAX_REMOVALS:
            raise Failure("Busy", f"cannot remove {path}: {MAX_REMOVALS} removals are under way; try again")
        self._runner = runner
        self._call = call
        self._removal: TreeRemoval | None = None
        self._cancelled = False
        runner.removals += 1
        runner.workers.submit(lambda: TreeRemoval(path), self._opened, self._refused)

    def take_data(self, data: bytes) -> None:
        raise wire.WireError("data for a call that takes none")

    def take_end(self) -> None:
        return

    def take_credit(self, size_bytes: int) -> None:
        return

    def cancel(self) -> None:
        self._cancelled = True  # a job is always under way, and the removal ends after it

    def _opened(self, removal: TreeRemoval) -> None:
        self._removal = removal
        self._stepped(False)

    def _stepped(self, is_done: bool) -> None:
        removal = self._removal
        if removal is not None and not is_done and not self._cancelled:
            self._runner.workers.submit(removal.step, self._stepped, self._refused)
            return
        self._close()
        if not self._cancelled:
            self._runner.connection.send(wire.pack(wire.RESULT, self._call, {}))

    def _refused(self, failure: Failure) -> None:
        self._close()
        if not self._cancelled:
            self._runner.refuse(self._call, failure)

    def _close(self) -> None:
        self._runner.removals -= 1
        self._runner.forget(self._call, self)
        if self._removal is not None:
            self._removal.close()
