"""The durable intent of a fork, in the registry's file: what remains to be done for sandboxes that are up.

It is written in the same transaction that makes the sandboxes of the fork ready, and removed once their memory is
copied. So a fork whose call was never answered is finished or undone at the next start, and never half of it.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Literal

from memo.errors import InvalidKey
from memo.ids import SessionRef
from sandboxd.errors import RegistryCorrupt
from sandboxd.host_database import HostDatabase
from sandboxd.models.fork import ForkMemory

ForkPhase = Literal["finishing", "undoing"]


@dataclass(frozen=True, slots=True)
class ForkRecord:
    id: str
    source: SessionRef
    targets: tuple[SessionRef, ...]
    memory: ForkMemory
    phase: ForkPhase = "finishing"


class ForkTable:
    """One table of the registry's file."""

    def __init__(self, database: HostDatabase) -> None:
        self._database = database

    async def load(self) -> list[ForkRecord]:
        def read(db: sqlite3.Connection) -> list[ForkRecord]:
            return [_decode(row[0]) for row in db.execute("SELECT record FROM forks ORDER BY rowid")]

        return await self._database.run(read)

    async def save(self, fork: ForkRecord) -> None:
        await self._database.run(lambda db: write_fork(db, fork))

    async def forget(self, fork_id: str) -> None:
        def write(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM forks WHERE id = ?", (fork_id,))

        await self._database.run(write)


def write_fork(db: sqlite3.Connection, fork: ForkRecord) -> None:
    fields = {
        "id": fork.id,
        "source": str(fork.source),
        "targets": [str(target) for target in fork.targets],
        "memory": fork.memory,
        "phase": fork.phase,
    }
    db.execute(
        "INSERT INTO forks (id, record) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET record = excluded.record",
        (fork.id, json.dumps(fields)),
    )


def _decode(text: str) -> ForkRecord:
    try:
        fields = json.loads(text)
        targets = tuple(SessionRef.parse(target) for target in fields["targets"])
        return ForkRecord(fields["id"], SessionRef.parse(fields["source"]), targets, fields["memory"], fields["phase"])
    except (ValueError, KeyError, TypeError, InvalidKey) as error:
        raise RegistryCorrupt(f"cannot read a fork's record in the registry: {type(error).__name__}") from error
