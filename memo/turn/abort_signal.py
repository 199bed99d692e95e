"""AbortSignal: stops a turn from outside or inside. It sets an event and cancels the scopes opened through it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class AbortSignal:
    """Fires once. Pass it to `run` and call `abort` from any task of the same event loop."""

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.reason: object = None
        self._scopes: list[anyio.CancelScope] = []

    @property
    def aborted(self) -> bool:
        return self.event.is_set()

    def abort(self, reason: object = None) -> None:
        """Set the event and cancel every scope. Further calls have no effect."""
        if self.aborted:
            return
        self.reason = reason
        self.event.set()
        for scope in self._scopes:
            scope.cancel()

    async def wait(self) -> None:
        await self.event.wait()

    @contextmanager
    def scope(self) -> Iterator[anyio.CancelScope]:
        """Open a cancel scope that the signal cancels, at once if it has already fired."""
        with anyio.CancelScope() as scope:
            if self.aborted:
                scope.cancel()
            self._scopes.append(scope)
            try:
                yield scope
            finally:
                self._scopes.remove(scope)
