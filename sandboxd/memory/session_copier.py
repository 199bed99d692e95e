"""SessionCopier: copies a session's memory to another session, through the checks of StoreClient.

It writes only to sessions that are new, so it needs no locks; the caller refreshes their mirrors afterwards.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from memo.documents import Author
from memo.errors import MemoError, SessionTaken
from memo.ids import AgentId, SessionRef, UserId
from memo.session_copy import CapturedSession, capture_session, copy_session, find_difference
from sandboxd.errors import Conflict, StoreUnavailable
from sandboxd.memory.store_client import StoreClient

T = TypeVar("T")

_WRITES = ("write_", "append_", "get_or_create")


class SessionCopier:
    def __init__(self, client: StoreClient) -> None:
        self._store = _CheckedStore(client)

    async def capture(self, source: SessionRef) -> CapturedSession:
        """Read what a copy of the session will contain."""
        return await self._asked("read the session's memory", capture_session(self._store, source))

    async def check_target(self, captured: CapturedSession, target: SessionRef, user: UserId) -> None:
        """Raise Conflict if the target belongs to another user, or has memory that a copy would mix with."""
        what = f"look at session {target.session}"
        own = await self._asked(what, find_difference(self._store, captured, target))
        if own is None and hasattr(self._store, "get_session"):
            session = await self._asked(what, self._store.get_session(str(target.tenant), str(target.session)))
            if session is not None and getattr(session, "user", None) != user:
                raise Conflict(f"cannot fork to session {target.session}: it belongs to another user; use another name")
        if own is not None:
            raise Conflict(f"cannot fork to session {target.session}: it has {own}; use another name")

    async def copy(self, captured: CapturedSession, target: SessionRef, user: UserId, agent: AgentId) -> None:
        """Copy what the target lacks. A repeated copy finishes an interrupted one."""
        author = Author("fork", captured.source.session, f"forked from {captured.source.session}")
        what = f"copy the memory of session {captured.source.session}"
        copying = copy_session(self._store, captured, target, user=user, agent=agent, author=author)
        await self._asked(what, copying)

    async def _asked(self, what: str, work: Awaitable[T]) -> T:
        try:
            return await work
        except SessionTaken as error:
            raise Conflict(f"{error}; use another name") from error
        except MemoError as error:
            raise StoreUnavailable(f"cannot {what}: {str(error).removeprefix('cannot ')}") from error
        except (AttributeError, TypeError) as error:  # an answer of the wrong shape
            raise StoreUnavailable(f"cannot {what}: the store's answer cannot be used") from error


class _CheckedStore:
    """The methods that the store has, each with the deadline and the errors of StoreClient."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        if method.startswith("_") or not self._client.has(method):
            raise AttributeError(method)

        async def call(*args: Any, **named: Any) -> Any:
            what = f"fork a session ({method})"
            return await self._client.call(what, method, *args, writes=method.startswith(_WRITES), **named)

        return call
