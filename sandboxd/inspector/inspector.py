"""Inspector: answers what the inspector's page asks for. Reads only."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from anyio import to_thread

from memo.errors import MemoError, Unsupported
from memo.ids import SessionRef, TenantId
from sandboxd.errors import HostError, InvalidRequest, NotFound, SandboxNotFound, SessionNotFound, StoreUnavailable
from sandboxd.history import EventFilter, EventHistory
from sandboxd.inspector.overview import FAILURE_KINDS, describe_daemon
from sandboxd.inspector.sampler import MeasuredSandboxes, StatsSampler
from sandboxd.inspector.search import StoreSearch
from sandboxd.inspector.session_reader import SessionReader, unsupported_parts
from sandboxd.inspector.timeline import Entry, PlacedEntry, build_timeline, details, event_id, page
from sandboxd.memory.store_client import StoreClient
from sandboxd.metrics import PoolFigures
from sandboxd.models.event import Event
from sandboxd.models.health import Readiness
from sandboxd.models.inspector import (
    MAX_ENTRIES,
    InspectedSession,
    InspectedSessionList,
    InspectorSessionsQuery,
    Overview,
    SearchQuery,
    SearchResult,
    SessionDetails,
)
from sandboxd.models.sandbox import SandboxView
from sandboxd.models.trace import JsonObject

_FAILURES = EventFilter(kinds=FAILURE_KINDS)
_SEARCHED_EVENTS = 2000
"""How many of the newest events are searched for failures."""
_NEVER = datetime.fromtimestamp(0, UTC)


class InspectedSandboxes(MeasuredSandboxes, Protocol):
    @property
    def history(self) -> EventHistory: ...
    @property
    def states(self) -> dict[str, int]: ...
    @property
    def pool(self) -> PoolFigures: ...
    def get(self, ref: SessionRef) -> SandboxView: ...
    def idle_s(self, ref: SessionRef) -> float: ...


class Inspector:
    def __init__(
        self,
        sandboxes: InspectedSandboxes,
        store: StoreClient | None,
        *,
        data: Path,
        version: str,
        readiness: Callable[[], Awaitable[Readiness]],
    ) -> None:
        self.reader = SessionReader(store)
        self.sampler = StatsSampler(sandboxes, data)
        self._sandboxes = sandboxes
        self._store = store
        self._version = version
        self._readiness = readiness

    async def overview(self) -> Overview:
        readiness = await self._readiness()
        return describe_daemon(
            version=self._version,
            readiness=readiness,
            unsupported=[] if self._store is None else unsupported_parts(self._store),
            states=self._sandboxes.states,
            pool=self._sandboxes.pool,
            sessions=await self._count_sessions(),
            sandboxes=[
                (view, self._sandboxes.idle_s(SessionRef(view.tenant, view.session)))
                for view in self._sandboxes.find_all()
            ],
            events=await self._newest_events(),
        )

    async def sessions(self, query: InspectorSessionsQuery) -> InspectedSessionList:
        """Return a page of the sessions of the store and of sandboxes, newest first."""
        items = await self._all_sessions(query.tenant)
        if self._store is not None:
            damaged = {(item.tenant, item.session): item for item in await self.reader.list_damaged(query.tenant)}
            items = [item for item in items if (item.tenant, item.session) not in damaged] + list(damaged.values())
        if query.user is not None:
            items = [item for item in items if item.user == query.user]
        if query.q:
            wanted = query.q.casefold()
            items = [item for item in items if _mentions(item, wanted)]
        items.sort(key=_order, reverse=True)
        if query.cursor is not None:
            last = _parse_cursor(query.cursor)
            items = [item for item in items if _order(item) < last]
        chosen = items[: query.limit]
        return InspectedSessionList(items=chosen, next=_cursor(chosen[-1]) if len(items) > len(chosen) else None)

    async def session(self, ref: SessionRef) -> SessionDetails:
        view = self._view(ref)
        found = None if self._store is None else await self.reader.find(ref)
        if found is None and view is not None:
            found = _of_sandbox(view)
        elif found is None and self._store is not None and not self._store.has("get_session"):
            # A store that keeps no sessions cannot tell whether one exists.
            found = InspectedSession(tenant=ref.tenant, session=ref.session)
        if found is None:
            raise SessionNotFound("cannot find this session")
        forks = [
            one.session
            for one in self._sandboxes.find_all()
            if one.tenant == ref.tenant and one.parent == ref.session and one.session != ref.session
        ]
        fields = dict(found) | {"state": None if view is None else view.state}
        return SessionDetails(**fields, sandbox=view, parent=None if view is None else view.parent, forks=sorted(forks))

    async def timeline(self, ref: SessionRef, after: str | None, limit: int) -> tuple[list[Entry], str | None, int]:
        """Return a page of entries, the id to continue after, and how many entries there are."""
        placed = await self._placed(ref)
        found = await to_thread.run_sync(page, placed, after, limit)
        if found is None:
            raise InvalidRequest("cannot continue: the session's timeline has no entry with the id in `after`")
        return *found, len(placed)

    async def entry(self, ref: SessionRef, entry_id: str) -> Entry:
        placed = await self._placed(ref)
        found = next((one for one in placed if one.entry["id"] == entry_id), None)
        if found is None:
            raise NotFound("cannot find this entry of the session's timeline")
        return details(found)

    async def search(self, query: SearchQuery) -> SearchResult:
        if self._store is None:
            raise StoreUnavailable("cannot search: this daemon has no store; serve with --store")
        sessions = await self._all_sessions(query.tenant)
        sessions.sort(key=_order, reverse=True)
        return await StoreSearch(self.reader, self._store).find(query.q, sessions, query.limit)

    async def require(self, ref: SessionRef) -> None:
        """Raise NotFound if neither a sandbox nor the store has the session."""
        await self.session(ref)

    async def _placed(self, ref: SessionRef) -> Sequence[PlacedEntry]:
        session = await self.session(ref)
        messages = await self._optional(self.reader.messages, ref)
        envelopes = await self._optional(self.reader.envelopes, ref)
        # Only events that are not in the trace yet; all of them if the store keeps no traces.
        traced = max(map(event_id, envelopes), default=0)
        wanted = EventFilter(tenant=ref.tenant, session=ref.session)
        newest = await self._sandboxes.history.find(
            wanted, after=traced or None, limit=MAX_ENTRIES, newest_first=not traced
        )
        newest.sort(key=lambda event: event.id)
        return await to_thread.run_sync(build_timeline, messages, envelopes, newest, session.created_at)

    async def _optional(
        self, load: Callable[[SessionRef], Awaitable[list[JsonObject]]], ref: SessionRef
    ) -> list[JsonObject]:
        """Load a part of the timeline; empty if this daemon has no store, or the store has no such part."""
        if self._store is None:
            return []
        try:
            return await load(ref)
        except Unsupported:
            return []

    async def _all_sessions(self, tenant: TenantId | None) -> list[InspectedSession]:
        """Return what the store lists, each with the state of its sandbox, and sandboxes that the store lacks."""
        views: dict[tuple[str | None, str | None], SandboxView] = {
            (view.tenant, view.session): view for view in self._sandboxes.find_all() if tenant in (None, view.tenant)
        }
        listed = [] if self._store is None else await self._listed(tenant)
        items = []
        for item in listed:
            view = views.pop((item.tenant, item.session), None)
            items.append(item if view is None else item.model_copy(update={"state": view.state}))
        return items + [_of_sandbox(view) for view in views.values()]

    async def _listed(self, tenant: TenantId | None) -> list[InspectedSession]:
        try:
            return await self.reader.list_sessions(tenant)
        except Unsupported:
            return []

    async def _newest_events(self) -> list[Event]:
        try:
            return await self._sandboxes.history.find(_FAILURES, limit=_SEARCHED_EVENTS, newest_first=True)
        except HostError:
            return []  # the check of the disk says why, and the rest of the overview is needed most then

    async def _count_sessions(self) -> int | None:
        if self._store is None:
            return None
        try:
            return await self.reader.count_sessions()
        except (StoreUnavailable, MemoError):
            return None

    def _view(self, ref: SessionRef) -> SandboxView | None:
        try:
            return self._sandboxes.get(ref)
        except SandboxNotFound:
            return None


def _of_sandbox(view: SandboxView) -> InspectedSession:
    return InspectedSession(
        tenant=view.tenant,
        session=view.session,
        user=view.user,
        agent=view.agent,
        state=view.state,
        created_at=view.created_at,
    )


def _mentions(item: InspectedSession, wanted: str) -> bool:
    return any(wanted in name.casefold() for name in (item.session, item.user, item.agent, item.tenant) if name)


Order = tuple[float, str, str]


def _order(item: InspectedSession) -> Order:
    """Return what sessions are sorted by, newest first; damaged ones, which may have no time, come before all."""
    at = math.inf if item.error is not None else (item.updated_at or item.created_at or _NEVER).timestamp()
    return at, item.tenant or "", item.session or ""


def _cursor(item: InspectedSession) -> str:
    at, tenant, session = _order(item)
    return base64.urlsafe_b64encode(f"{at!r} {tenant} {session}".encode()).decode().rstrip("=")


def _parse_cursor(cursor: str) -> Order:
    try:
        text = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)).decode()
        at, tenant, session = text.split(" ")
        return float(at), tenant, session
    except (ValueError, binascii.Error):
        raise InvalidRequest("cannot continue: this cursor is not one that the daemon returned") from None
