"""Watch calls on the event loop: events of a directory, sent as they happen and as the daemon grants credit.

The kernel keeps what is not read yet, and reports when its queue overflows; so a slow reader costs no memory here.
"""

from __future__ import annotations

from . import wire
from .failure import Failure
from .hub import READABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .core import RunnerCore
    from .directory_watch import DirectoryWatch
    from .hub import Timer

MAX_WATCHES = 8
"""How many calls may watch at once. Each takes an inotify instance, of which a user of the host has few."""
PAUSE_S = 0.02
"""How long to wait after the first change, so that changes of the same file are merged."""


def _open_watch(path: str, recursive: bool) -> DirectoryWatch:
    from .directory_watch import DirectoryWatch  # most sandboxes never need it

    return DirectoryWatch(path, recursive)


class Watching:
    """Sends `ready` once everything is watched, then events until the call is cancelled or the directory is gone."""

    def __init__(self, runner: RunnerCore, call: int, path: str, recursive: bool) -> None:
        if runner.watches >= MAX_WATCHES:
            raise Failure("Busy", f"cannot watch {path}: {MAX_WATCHES} watches are open in this sandbox; close one")
        self._runner = runner
        self._call = call
        self._credit = wire.WINDOW_BYTES
        self._watch: DirectoryWatch | None = None
        self._timer: Timer | None = None
        self._busy = True
        self._is_waiting = False
        self._cancelled = False
        runner.watches += 1
        runner.workers.submit(lambda: _open_watch(path, recursive), self._opened, self._refused)

    def take_data(self, data: bytes) -> None:
        raise wire.WireError("data for a call that takes none")

    def take_end(self) -> None:
        return

    def take_credit(self, size_bytes: int) -> None:
        was_starved = self._credit <= 0
        self._credit += size_bytes
        if was_starved:
            self._go_on()

    def cancel(self) -> None:
        self._cancelled = True
        if not self._busy:
            self._close()

    def _opened(self, watch: DirectoryWatch) -> None:
        self._watch = watch
        self._stepped((b"", True))

    def _stepped(self, result: tuple[bytes, bool]) -> None:
        events, has_more = result
        watch = self._watch
        self._busy = False
        if self._cancelled or watch is None:
            self._close()
            return
        if events:
            self._credit -= len(events)
            self._runner.connection.send(wire.pack(wire.DATA, self._call, None, events))
        if watch.is_over:
            self._close()
            self._runner.connection.send(wire.pack(wire.RESULT, self._call, {}))
        elif has_more:
            self._go_on()
        else:
            self._is_waiting = True
            self._runner.hub.watch(watch.fd, READABLE, self._readable)

    def _readable(self) -> None:
        self._stop_waiting()
        self._timer = self._runner.hub.after(PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        watch = self._watch
        if self._busy or self._cancelled or self._is_waiting or self._credit <= 0 or watch is None:
            return
        if self._runner.connection.is_congested:
            self._runner.connection.when_drained(self._go_on)
            return
        self._busy = True
        self._runner.workers.submit(watch.step, self._stepped, self._refused)

    def _stop_waiting(self) -> None:
        if self._is_waiting and self._watch is not None:
            self._is_waiting = False
            self._runner.hub.unwatch(self._watch.fd)

    def _refused(self, failure: Failure) -> None:
        self._close()
        if not self._cancelled:
            self._runner.refuse(self._call, failure)

    def _close(self) -> None:
        self._busy = True  # no more jobs
        self._stop_waiting()
        if self._timer is not None:
            self._runner.hub.cancel(self._timer)
        self._runner.watches -= 1
        self._runner.forget(self._call, self)
        if self._watch is not None:
            self._watch.close()
