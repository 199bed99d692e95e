"""The notifications of one connection of the handshake era: which resources it subscribed to, and what it must hear.

Changes are kept as a set until the client reads them, so a slow client holds no more than its subscriptions.
"""

from __future__ import annotations

from contextlib import ExitStack

import anyio
from mcp.server.connection import Connection
from mcp.shared.subscriptions import ResourceUpdated, ServerEvent

from sandboxd.errors import LimitReached
from sandboxd.mcp.resource_feed import Listening, ResourceFeed

MAX_SUBSCRIPTIONS = 1000


class ConnectionNotifier:
    def __init__(self, connection: Connection, feed: ResourceFeed) -> None:
        self._connection = connection
        self._feed = feed
        self._whose: Listening | None = None
        self._listening = ExitStack()
        self._subscribed: set[str] = set()
        self._updated: set[str] = set()
        self._is_list_changed = False
        self._news = anyio.Event()

    async def listen(self, whose: Listening) -> None:
        """Hear of changes from now on; of another user's, if the session has another user now."""
        if whose != self._whose:
            self._listening.close()
            self._listening.enter_context(self._feed.listen(whose, self._hear))
            self._whose = whose
        await self._feed.wait_connected()

    def subscribe(self, uri: str) -> None:
        if len(self._subscribed) >= MAX_SUBSCRIPTIONS and uri not in self._subscribed:
            raise LimitReached(
                f"cannot subscribe: this connection has {MAX_SUBSCRIPTIONS} subscriptions; unsubscribe from one first"
            )
        self._subscribed.add(uri)

    def unsubscribe(self, uri: str) -> None:
        self._subscribed.discard(uri)

    async def run(self) -> None:
        """Send notifications until cancelled."""
        try:
            while True:
                await self._news.wait()
                self._news = anyio.Event()
                updated, self._updated = self._updated, set()
                is_list_changed, self._is_list_changed = self._is_list_changed, False
                if is_list_changed:
                    await self._connection.send_resource_list_changed()
                for uri in sorted(updated):
                    await self._connection.send_resource_updated(uri)
        finally:
            self._listening.close()

    def _hear(self, event: ServerEvent | None) -> None:
        if isinstance(event, ResourceUpdated):
            if event.uri not in self._subscribed:
                return
            self._updated.add(event.uri)
        else:
            self._is_list_changed = True
            if event is None:
                self._updated |= self._subscribed
        self._news.set()
