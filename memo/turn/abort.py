"""Stopping a turn from outside or inside: an event that can be waited for, and scopes that it cancels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class AbortSignal:
    """Fires once. Make one, pass it to `run`, and call `abort` from any task of the same event loop."""

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.reason: object = None
        self._scopes: list[anyio.CancelScope] = []

    @property
    def aborted(self) -> bool:
        return self.event.is_set()

    def abort(self, reason: object = None) -> None:
        """Set the event and cancel every scope. A second call changes nothing."""
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
        """A cancel scope that the signal cancels; one that is entered too late is cancelled from the start."""
        with anyio.CancelScope() as scope:
            if self.aborted:
                scope.cancel()
            self._scopes.append(scope)
            try:
                yield scope
            finally:
                self._scopes.remove(scope)
