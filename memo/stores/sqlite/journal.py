"""The logs and slots of one session in SQLite, as JSON text that `memo.stores.journal` encodes and decodes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from memo.ids import SessionRef
from memo.stores.journal import LogName, Slot, SlotName
from memo.stores.sqlite.contents import decoded
from memo.stores.sqlite.database import Database


class SQLiteJournal:
    def __init__(self, database: Database, ref: SessionRef, now: Callable[[], int]) -> None:
        self._database = database
        self._named = str(ref)
        self._ref = (ref.tenant, ref.session)
        self._now = now

    async def append(self, log: LogName, agent: str, body: str) -> None:
        await self.append_all(log, agent, (body,))

    async def append_all(self, log: LogName, agent: str, bodies: Sequence[str]) -> None:
        def commit(db: sqlite3.Connection) -> None:
            # By itself: within another query SQLite reads the whole log to find the largest position.
            (last,) = db.execute(
                "SELECT MAX(position) FROM logs WHERE tenant = ? AND session = ? AND log = ? AND agent = ?",
                (*self._ref, log, agent),
            ).fetchone()
            db.executemany(
                "INSERT INTO logs (tenant, session, log, agent, position, body, at) VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (*self._ref, log, agent, position, body, self._now())
                    for position, body in enumerate(bodies, start=(last or 0) + 1)
                ],
            )

        await self._database.write(commit)

    async def load(self, log: LogName, agent: str) -> list[str]:
        def query(db: sqlite3.Connection) -> list[str]:
            rows = db.execute(
                """SELECT CAST(body AS BLOB), position FROM logs
                   WHERE tenant = ? AND session = ? AND log = ? AND agent = ? ORDER BY position""",
                (*self._ref, log, agent),
            )
            return [decoded(body, f"{log} {position} of session {self._named}") for body, position in rows]

        return await self._database.read(query)

    def place(self, log: LogName, agent: str, number: int) -> str:
        of = f" of agent {agent}" if agent else ""
        return f"row {number} of log {log}{of} of session {self._named}"

    async def put(self, slot: SlotName, agent: str, body: str) -> None:
        def commit(db: sqlite3.Connection) -> None:
            db.execute(
                """INSERT INTO slots (tenant, session, slot, agent, body, events_before, at)
                   SELECT ?, ?, ?, ?, ?, COALESCE(MAX(position), 0), ? FROM logs
                   WHERE tenant = ? AND session = ? AND log = 'event' AND agent = ''
                   ON CONFLICT (tenant, session, slot, agent) DO UPDATE SET
                   body = excluded.body, events_before = excluded.events_before, at = excluded.at""",
                (*self._ref, slot, agent, body, self._now(), *self._ref),
            )

        await self._database.write(commit)

    async def get(self, slot: SlotName, agent: str) -> Slot | None:
        def query(db: sqlite3.Connection) -> Slot | None:
            row = db.execute(
                """SELECT CAST(body AS BLOB), events_before FROM slots
                   WHERE tenant = ? AND session = ? AND slot = ? AND agent = ?""",
                (*self._ref, slot, agent),
            ).fetchone()
            return None if row is None else Slot(decoded(row[0], f"the {slot} of session {self._named}"), row[1])

        return await self._database.read(query)

    async def agents(self) -> list[str]:
        def query(db: sqlite3.Connection) -> list[str]:
            rows = db.execute(
                """SELECT agent FROM logs WHERE tenant = ? AND session = ? AND agent != ''
                   UNION SELECT agent FROM slots WHERE tenant = ? AND session = ? AND agent != ''""",
                (*self._ref, *self._ref),
            )
            return [agent for (agent,) in rows]

        return await self._database.read(query)
