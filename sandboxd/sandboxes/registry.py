"""The registry: durable records of sandboxes, one SQLite file, written before containers and directories change.

It is independent of engines and directories. A write returns once it is on disk. A file that is damaged, or written by
a newer version, raises RegistryCorrupt and is never replaced by an empty one.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from memo.errors import InvalidKey
from memo.ids import AgentId, SessionRef, UserId
from sandboxd.errors import RegistryCorrupt
from sandboxd.host_database import HostDatabase
from sandboxd.limits import Limits
from sandboxd.models.network import NetworkAccess
from sandboxd.sandboxes.fork_record import ForkRecord, ForkTable, write_fork
from sandboxd.sandboxes.lifecycle import Options, Origin, Owner, Record, Shape, State
from sandboxd.sandboxes.snapshot_record import SnapshotTable


class Registry:
    """Owns the file. A tool call never uses it."""

    def __init__(self, path: Path) -> None:
        self._database = HostDatabase(
            path,
            "the registry",
            _MIGRATIONS,
            advice=f"restore {path.name}, or move it to start afresh",
            corrupt=RegistryCorrupt,
            is_verified=True,
        )
        self.snapshots = SnapshotTable(self._database)
        self.forks = ForkTable(self._database)

    async def open(self) -> None:
        await self._database.open()

    async def aclose(self) -> None:
        await self._database.aclose()

    async def load(self) -> list[Record]:
        def read(db: sqlite3.Connection) -> list[Record]:
            return [_decode(row[0]) for row in db.execute("SELECT record FROM sandboxes ORDER BY rowid")]

        return await self._database.run(read)

    async def save(self, record: Record) -> None:
        ref = None if record.owner is None else record.owner.ref
        tenant, session = (None, None) if ref is None else (ref.tenant, ref.session)

        def write(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO sandboxes (id, tenant, session, record) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
                "SET tenant = excluded.tenant, session = excluded.session, record = excluded.record",
                (record.id, tenant, session, _encode(record)),
            )

        await self._database.run(write)

    async def commit_fork(self, records: Sequence[Record], fork: ForkRecord) -> None:
        """Save all sandboxes of a fork together with what remains to be done for them, or nothing."""

        def write(db: sqlite3.Connection) -> None:
            for record in records:
                db.execute("UPDATE sandboxes SET record = ? WHERE id = ?", (_encode(record), record.id))
            write_fork(db, fork)

        await self._database.run(write)

    async def forget(self, sandbox_id: str) -> None:
        def write(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM sandboxes WHERE id = ?", (sandbox_id,))

        await self._database.run(write)


_CREATE = (
    """CREATE TABLE sandboxes (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL,
        session TEXT NOT NULL,
        record TEXT NOT NULL,
        UNIQUE (tenant, session)  -- I6: one container per (tenant, session)
    )""",
)


def _allow_no_owner(db: sqlite3.Connection) -> None:
    """Allow sandboxes without an owner. Before, every sandbox had an owner and none came from a pool."""
    records = []
    for tenant, session, text in db.execute("SELECT tenant, session, record FROM sandboxes ORDER BY rowid"):
        try:
            record = json.loads(text)
            record["owner"] = {name: record.pop(name) for name in ("ref", "user", "agent", "env")}
            record |= {"fittings": "", "from_pool": False}
            records.append((record["id"], tenant, session, json.dumps(record)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RegistryCorrupt(f"cannot read a record of the registry: {type(error).__name__}") from error
    db.execute("DROP TABLE sandboxes")
    db.execute(
        """CREATE TABLE sandboxes (
            id TEXT PRIMARY KEY,
            tenant TEXT,  -- NULL, as the session is, while it waits in the pool
            session TEXT,
            record TEXT NOT NULL,
            UNIQUE (tenant, session)  -- I6: one container per (tenant, session)
        )"""
    )
    db.executemany("INSERT INTO sandboxes (id, tenant, session, record) VALUES (?, ?, ?, ?)", records)


_SNAPSHOTS_AND_FORKS = (
    """CREATE TABLE snapshots (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL,
        session TEXT NOT NULL,
        record TEXT NOT NULL
    )""",
    """CREATE TABLE forks (
        id TEXT PRIMARY KEY,
        record TEXT NOT NULL
    )""",
)

_MIGRATIONS = (_CREATE, _allow_no_owner, _SNAPSHOTS_AND_FORKS)


def _encode(record: Record) -> str:
    owner, shape = record.owner, record.shape
    return json.dumps(
        {
            "id": record.id,
            "owner": None
            if owner is None
            else {"ref": str(owner.ref), "user": owner.user, "agent": owner.agent, "env": dict(owner.env)},
            "image": shape.image,
            "limits": shape.limits.model_dump(),
            "fittings": shape.fittings,
            "engine": record.engine,
            "secret": record.secret,
            "created_at": record.created_at.isoformat(),
            "state": record.state,
            "generation": record.generation,
            "container": record.container,
            "cause": record.cause,
            "from_pool": record.from_pool,
            "removal": record.removal,
            "options": _encode_options(record.options),
            "origin": asdict(record.origin),
            "expires_at": _encode_time(record.expires_at),
            "resting_since": _encode_time(record.resting_since),
        }
    )


def _decode(text: str) -> Record:
    try:
        fields = json.loads(text)
        return Record(
            id=fields["id"],
            shape=Shape(fields["image"], Limits.model_validate(fields["limits"]), fields["fittings"]),
            engine=fields["engine"],
            secret=fields["secret"],
            created_at=datetime.fromisoformat(fields["created_at"]),
            owner=None if fields["owner"] is None else _decode_owner(fields["owner"]),
            # An earlier version called a sandbox that hibernates gone.
            state=State.HIBERNATED if fields["cause"] == "idle" else State(fields["state"]),
            generation=fields["generation"],
            container=fields["container"],
            cause=fields["cause"],
            from_pool=fields["from_pool"],
            removal=fields.get("removal"),
            options=_decode_options(fields.get("options", {})),
            origin=Origin(**fields.get("origin", {})),
            expires_at=_decode_time(fields.get("expires_at")),
            resting_since=_decode_time(fields.get("resting_since")),
        )
    except (ValueError, KeyError, TypeError, InvalidKey) as error:
        raise RegistryCorrupt(f"cannot read a record of the registry: {type(error).__name__}") from error


def _encode_options(options: Options) -> dict[str, Any]:
    network = options.network
    return asdict(options) | {"network": None if network is None else network.model_dump()}


def _decode_options(fields: dict[str, Any]) -> Options:
    network = fields.pop("network", None)
    return Options(**fields, network=None if network is None else NetworkAccess.model_validate(network))


def _decode_owner(fields: dict[str, Any]) -> Owner:
    return Owner(
        ref=SessionRef.parse(fields["ref"]),
        user=UserId(fields["user"]),
        agent=AgentId(fields["agent"]) if fields["agent"] else None,
        env=fields["env"],
    )


def _encode_time(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def _decode_time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
