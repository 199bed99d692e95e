"""The durable records of snapshots, in the registry's file: written before a snapshot's own file changes.

A snapshot that is `copying` or `removing` was interrupted by a crash, and is removed at the next start. One that is
`ready` is only removed on request. (I14)
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from memo.errors import InvalidKey
from memo.ids import SessionRef, UserId
from sandboxd.errors import RegistryCorrupt
from sandboxd.host_database import HostDatabase
from sandboxd.models.snapshot import SnapshotView

SnapshotPhase = Literal["copying", "ready", "removing"]
SnapshotFormat = Literal["image", "tar"]
"""The image of a workspace with a filesystem of its own, or an archive that the runner wrote of a plain directory."""


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """`id` is opaque and names its file."""

    id: str
    ref: SessionRef
    user: UserId
    name: str | None
    format: SnapshotFormat
    disk_mb: int
    created_at: datetime
    size_bytes: int
    """While it is copied, the most that it may take."""
    phase: SnapshotPhase = "copying"
    request: str | None = None
    """The request that asked for it, by which a retry is recognised."""

    def view(self) -> SnapshotView:
        return SnapshotView(
            id=self.id,
            name=self.name,
            size_bytes=self.size_bytes,
            created_at=self.created_at,
            session=self.ref.session,
            user=self.user,
            disk_mb=self.disk_mb,
        )


class SnapshotTable:
    """One table of the registry's file."""

    def __init__(self, database: HostDatabase) -> None:
        self._database = database

    async def load(self) -> list[SnapshotRecord]:
        def read(db: sqlite3.Connection) -> list[SnapshotRecord]:
            return [_decode(row[0]) for row in db.execute("SELECT record FROM snapshots ORDER BY rowid")]

        return await self._database.run(read)

    async def save(self, record: SnapshotRecord) -> None:
        def write(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO snapshots (id, tenant, session, record) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET record = excluded.record",
                (record.id, record.ref.tenant, record.ref.session, _encode(record)),
            )

        await self._database.run(write)

    async def forget(self, snapshot_id: str) -> None:
        def write(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM snapshots WHERE id = ?", (snapshot_id,))

        await self._database.run(write)


def _encode(record: SnapshotRecord) -> str:
    fields = {name: getattr(record, name) for name in _PLAIN}
    return json.dumps(fields | {"ref": str(record.ref), "created_at": record.created_at.isoformat()})


_PLAIN = ("id", "user", "name", "format", "disk_mb", "size_bytes", "phase", "request")


def _decode(text: str) -> SnapshotRecord:
    try:
        fields: dict[str, Any] = json.loads(text)
        plain = {name: fields[name] for name in _PLAIN if name != "user"}
        return SnapshotRecord(
            ref=SessionRef.parse(fields["ref"]),
            user=UserId(fields["user"]),
            created_at=datetime.fromisoformat(fields["created_at"]),
            **plain,
        )
    except (ValueError, KeyError, TypeError, InvalidKey) as error:
        raise RegistryCorrupt(f"cannot read a snapshot's record in the registry: {type(error).__name__}") from error
