"""Changes of memory for MCP clients: follows the daemon's events and tells listeners which resources changed.

A listener hears only of its own tenant, session and user (I7). It is called on the event loop and must not block; one
follower serves all listeners, and runs only while there are any.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated, ServerEvent

from sandboxd.client import AsyncClient, Event
from sandboxd.client.errors import KNOWN_ERRORS
from sandboxd.mcp.resources import MemoResource

FIRST_RETRY_S = 0.5
LAST_RETRY_S = 10.0
CONNECT_S = 5.0

_FUTURE = 2**62
"""An id that no event has: the daemon answers at once with a gap, and goes on with what happens from then on."""

Listener = Callable[[ServerEvent | None], None]
"""Takes a change; None means that any resource may have changed, because events were missed."""
_Owner = tuple[str, str, str]
"""Tenant, scope, and the id of the session or user."""


@dataclass(frozen=True, slots=True)
class Listening:
    """Whose memory a listener hears of."""

    tenant: str
    session: str
    user: str

    @property
    def owners(self) -> tuple[_Owner, _Owner]:
        return (self.tenant, "session", self.session), (self.tenant, "user", self.user)


class ResourceFeed:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._listeners: dict[_Owner, list[Listener]] = {}
        self._wanted = anyio.Event()
        self._follower: anyio.CancelScope | None = None
        self._following = anyio.Event()
        """Set while the follower is connected."""

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run)
            yield
            tasks.cancel_scope.cancel()

    @contextmanager
    def listen(self, whose: Listening, listener: Listener) -> Iterator[None]:
        for owner in whose.owners:
            self._listeners.setdefault(owner, []).append(listener)
        self._wanted.set()
        try:
            yield
        finally:
            for owner in whose.owners:
                left = self._listeners[owner]
                left.remove(listener)
                if not left:
                    del self._listeners[owner]
            if not self._listeners:
                self._wanted = anyio.Event()
                if self._follower is not None:
                    self._follower.cancel()

    async def wait_connected(self) -> None:
        """Wait until changes are heard of, but not forever: a client is not to wait for a daemon that is away."""
        with anyio.move_on_after(CONNECT_S):
            await self._following.wait()

    async def _run(self) -> None:
        retry_s, is_first = FIRST_RETRY_S, True
        while True:
            await self._wanted.wait()
            with anyio.CancelScope() as self._follower:
                try:
                    async with aclosing(self._client.events(_FUTURE)) as events:
                        async for event in events:
                            if not self._following.is_set():  # the first is always a gap, and means: connected
                                self._following.set()
                                retry_s = FIRST_RETRY_S
                                if is_first:
                                    is_first = False
                                    continue
                            self._tell(event)
                except KNOWN_ERRORS:
                    pass  # the daemon restarts, or is out of reach: follow again
                self._following = anyio.Event()
                await anyio.sleep(retry_s)
                retry_s = min(LAST_RETRY_S, 2 * retry_s)
            if self._follower.cancelled_caught:
                retry_s, is_first, self._following = FIRST_RETRY_S, True, anyio.Event()

    def _tell(self, event: Event) -> None:
        if event.kind == "gap":
            self._tell_all()
        elif event.kind == "memo" and (found := _changed(event.fields)) is not None:
            owner, place, is_listed = found
            for listener in list(self._listeners.get(owner, ())):
                listener(ResourceUpdated(place.uri))
                if is_listed:
                    listener(ResourcesListChanged())

    def _tell_all(self) -> None:
        for listener in {id(one): one for listeners in self._listeners.values() for one in listeners}.values():
            listener(None)


def _changed(fields: Mapping[str, Any]) -> tuple[_Owner, MemoResource, bool] | None:
    """Return whose resource changed, which, and whether the list of resources changed with it."""
    tenant, session, user = fields.get("tenant"), fields.get("session"), fields.get("user")
    is_listed = fields.get("revision") == 1 or fields.get("what") != "written"
    if not isinstance(tenant, str):
        return None
    if isinstance(session, str) and isinstance(fields.get("artifact"), str):
        return (tenant, "session", session), MemoResource("session", fields["artifact"], is_artifact=True), is_listed
    if not isinstance(fields.get("name"), str):
        return None
    if isinstance(session, str):
        return (tenant, "session", session), MemoResource("session", fields["name"]), is_listed
    if isinstance(user, str):
        return (tenant, "user", user), MemoResource("user", fields["name"]), is_listed
    return None
