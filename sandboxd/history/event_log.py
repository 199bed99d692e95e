"""EventLog: the events of a data directory, across restarts, bounded in number and age.

An event is in a journal file when `record` returns and in the database soon after. The database also holds how far the
traces have come. Nothing here is ever raised into the call that published an event: what cannot be kept is counted.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import anyio
import structlog
from pydantic_core import from_json

from sandboxd.errors import HostBusy, HostError, HostFull, HostIO
from sandboxd.history.event_filter import EventFilter, microseconds
from sandboxd.history.journal import EventJournal
from sandboxd.history.kept_event import KeptEvent, kept_event
from sandboxd.history_settings import HistoryOptions
from sandboxd.host_database import HostDatabase
from sandboxd.models.event import Event

MOST_PENDING: Final = 50_000
MOST_PENDING_BYTES: Final = 32 * 1024 * 1024
_AT_ONCE: Final = 5000
"""The most events that one transaction takes, so that readers get their turn."""

_ADVICE = "stop the daemon and move the file away: it holds only past events"
_MIGRATIONS = (
    (
        """CREATE TABLE events (
            id INTEGER PRIMARY KEY,
            kind TEXT NOT NULL,
            at INTEGER NOT NULL,  -- microseconds since the epoch
            tenant TEXT,
            session TEXT,
            user TEXT,
            fields BLOB NOT NULL,  -- a JSON object
            detail BLOB  -- a JSON object for the trace; removed once it is there
        )""",
        "CREATE INDEX events_of_sessions ON events (tenant, session, id)",
        "CREATE INDEX events_by_time ON events (at)",
        # removed: the highest id that was removed. traced: every event up to this id is in its trace, or counted.
        "CREATE TABLE progress (name TEXT PRIMARY KEY, value INTEGER NOT NULL)",
    ),
)
_INSERT = "INSERT OR IGNORE INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)"

_log = structlog.get_logger()


class EventLog:
    """Publishers call `record` from the event loop's own thread."""

    def __init__(self, directory: Path, options: HistoryOptions) -> None:
        self._options = options
        self._journal = EventJournal(directory)
        self._database = HostDatabase(
            directory / "events.db", "the log of events", _MIGRATIONS, advice=_ADVICE, purpose="keep events"
        )
        self._is_open = False
        self._pending: deque[KeptEvent] = deque()
        self._pending_bytes = 0
        self._writing = anyio.Lock()
        self.unwritten = anyio.Event()
        """Set while events wait to be written to the database."""
        self.written = anyio.Event()
        """Set, and replaced, each time events have been written to the database."""
        self.last_id = 0
        """The newest id of this or an earlier run."""
        self.removed_id = 0
        """The highest id that was removed because of a bound."""
        self.traced_id = 0
        self.count = 0
        self.dropped = 0
        """How many events could not be kept."""
        self.untraced_removed = 0
        """How many events were removed before they were in their trace."""

    async def open(self, first_id: int) -> None:
        """Take over what an earlier daemon wrote. A full disk does not prevent it: events then wait in the journal.

        `first_id` is where a new log begins; a reader that asks for earlier events gets a gap.
        """
        try:
            for line in self._journal.open():
                self._recover(line)
        except OSError as error:
            _log.warning("cannot open the journal of events: until the next start a kill may lose some", why=str(error))
        if self._pending:
            self._pending = deque(sorted(self._pending))  # the two files are not in the order of their names
            self.last_id = self._pending[-1].id
            self._journal.hold(self.last_id)
            first_id = self._pending[0].id
        self.removed_id = first_id - 1
        try:
            await self.write()
        except (HostFull, HostIO, HostBusy) as error:
            _log.warning("cannot open the log of events yet", why=str(error))

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self.write()
            except HostError as error:
                _log.warning("events stay in the journal until the next start", why=str(error))
            await self._database.aclose()
            self._journal.close()

    def record(
        self, number: int, kind: str, at: datetime, fields: Mapping[str, Any], detail: Mapping[str, str] | None
    ) -> None:
        """Keep an event. It survives the end of this process, unless the disk is full or too many wait."""
        entry = kept_event(number, kind, microseconds(at), fields, detail)
        line = b"%d %d %b\t%b\t%b\n" % (number, entry.at, kind.encode(), entry.fields, entry.detail or b"")
        self.last_id = number
        if len(self._pending) >= MOST_PENDING or self._pending_bytes + len(line) > MOST_PENDING_BYTES:
            self.dropped += 1
            return
        try:
            self._journal.append(number, line)
        except OSError as error:
            if not self.dropped:
                _log.warning("the journal refuses events", why=str(error))
        self._keep(entry)

    def _keep(self, entry: KeptEvent) -> None:
        self._pending.append(entry)
        self._pending_bytes += len(entry.fields) + len(entry.detail or b"")
        self.unwritten.set()

    async def write(self) -> None:
        """Move what waits into the database, and remove what is beyond the bounds."""
        async with self._writing:
            with anyio.CancelScope(shield=True):  # what was committed must also be noted here
                await self._open_database()
                self.unwritten = anyio.Event()
                has_news = bool(self._pending)
                while True:
                    self._journal.turn()
                    entries = [self._pending[place] for place in range(min(_AT_ONCE, len(self._pending)))]
                    try:
                        await self._commit(entries)
                    except HostError:
                        self.unwritten.set()
                        raise
                    if len(entries) < _AT_ONCE:
                        break
        if has_news:
            self.written.set()
            self.written = anyio.Event()

    async def _commit(self, entries: list[KeptEvent]) -> None:
        added, removed, lost, removed_id = await self._database.run(lambda db: self._store(db, entries))
        self.count += added - removed
        self.untraced_removed += lost
        self.removed_id = max(self.removed_id, removed_id)
        for entry in entries:
            self._pending.popleft()
            self._pending_bytes -= len(entry.fields) + len(entry.detail or b"")
        if entries:
            self._journal.release(entries[-1].id)

    def _store(self, db: sqlite3.Connection, entries: list[KeptEvent]) -> tuple[int, int, int, int]:
        """Return how many were added and removed, how many of those were not in a trace, and the highest removed id."""
        added = db.executemany(_INSERT, entries).rowcount if entries else 0
        removed, lost, highest = 0, 0, 0
        for condition, bound in self._beyond(db, self.count + added):
            found = f"FROM events WHERE {condition}"
            (last, untraced) = db.execute(
                f"SELECT max(id), sum(session IS NOT NULL AND id > ?) {found}",  # fixed texts
                (self.traced_id, bound),
            ).fetchone()
            if last is not None:
                removed += db.execute(f"DELETE {found}", (bound,)).rowcount
                lost += untraced
                highest = max(highest, last)
        if highest:
            db.execute("UPDATE progress SET value = max(value, ?) WHERE name = 'removed'", (highest,))
        return max(added, 0), removed, lost, highest

    def _beyond(self, db: sqlite3.Connection, count: int) -> Iterable[tuple[str, int]]:
        if self._options.max_age_s:
            oldest = datetime.now(UTC) - timedelta(seconds=self._options.max_age_s)
            yield "at < ?", microseconds(oldest)
        if (surplus := count - self._options.max_events) > 0:
            row = db.execute("SELECT id FROM events ORDER BY id LIMIT 1 OFFSET ?", (surplus - 1,)).fetchone()
            if row is not None:
                yield "id <= ?", row[0]

    async def find(
        self, wanted: EventFilter, *, limit: int, after: int | None = None, newest_first: bool = False
    ) -> list[Event]:
        """Return matching events in order of their ids, beginning after this id in that order."""
        # First, so that an event which is written in between is found twice and not missed.
        waiting = [entry.event() for entry in self._pending]
        found: list[Event] = []
        if self._is_open:
            found = await self._database.run(lambda db: _select(db, wanted, limit, after, newest_first=newest_first))
        stored = {event.id for event in found}
        step = -1 if newest_first else 1
        found += [
            event
            for event in waiting
            if event.id not in stored and wanted.matches(event) and (after is None or (event.id - after) * step > 0)
        ]
        found.sort(key=lambda event: event.id, reverse=newest_first)
        return found[:limit]

    async def untraced(self, limit: int) -> list[KeptEvent]:
        """Return the oldest events of sessions that are not in their trace yet."""
        query = "SELECT * FROM events WHERE id > ? AND session IS NOT NULL AND tenant IS NOT NULL ORDER BY id LIMIT ?"
        traced = self.traced_id
        return await self._database.run(lambda db: [KeptEvent(*row) for row in db.execute(query, (traced, limit))])

    async def set_traced(self, number: int) -> None:
        """Note that every event up to this id is in its trace, or given up."""

        def work(db: sqlite3.Connection) -> None:
            db.execute("UPDATE progress SET value = ? WHERE name = 'traced'", (number,))
            db.execute(
                "UPDATE events SET detail = NULL WHERE id > ? AND id <= ? AND detail IS NOT NULL", (before, number)
            )

        before = self.traced_id
        with anyio.CancelScope(shield=True):
            await self._database.run(work)
            self.traced_id = number

    async def _open_database(self) -> None:
        if self._is_open:
            return
        await self._database.open()
        self._is_open = True
        begin = self.removed_id
        self.count, last, self.removed_id, self.traced_id = await self._database.run(lambda db: _load(db, begin))
        self.last_id = max(self.last_id, last)

    def _recover(self, line: bytes) -> None:
        """Take a line of an earlier daemon. A damaged one is counted as dropped."""
        try:
            head, fields, detail = line.split(b"\t")
            number, at, kind = head.split(b" ")
            found = from_json(fields)
            self._keep(kept_event(int(number), kind.decode(), int(at), found, from_json(detail) if detail else None))
        except (ValueError, AttributeError):
            self.dropped += 1


def _select(
    db: sqlite3.Connection, wanted: EventFilter, limit: int, after: int | None, *, newest_first: bool
) -> list[Event]:
    where, parameters = wanted.where()
    if after is not None:
        where += " AND id < ?" if newest_first else " AND id > ?"
        parameters.append(after)
    order = "DESC" if newest_first else "ASC"
    query = f"SELECT * FROM events WHERE 1{where} ORDER BY id {order} LIMIT ?"  # noqa: S608  # fixed texts
    return [KeptEvent(*row).event() for row in db.execute(query, (*parameters, limit))]


def _load(db: sqlite3.Connection, begin: int) -> tuple[int, int, int, int]:
    """Return what the log holds. A new one notes where it begins."""
    db.execute("INSERT OR IGNORE INTO progress VALUES ('removed', ?), ('traced', ?)", (begin, begin))
    count, last = db.execute("SELECT count(*), coalesce(max(id), 0) FROM events").fetchone()
    progress = dict(db.execute("SELECT name, value FROM progress"))
    return count, last, progress["removed"], progress["traced"]
