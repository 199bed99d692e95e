"""The registry: durable records of sandboxes, one SQLite file, written before the world changes.

It knows nothing of engines or directories. A write returns once it is on disk. A file that is damaged, or that
a newer version wrote, is RegistryCorrupt: it is never replaced by an empty one.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import anyio
from anyio import to_thread

from memo.errors import InvalidKey
from memo.ids import AgentId, SessionRef, UserId
from sandboxd import sqlite_errors
from sandboxd.errors import RegistryCorrupt, SandboxdError
from sandboxd.limits import Limits
from sandboxd.sandboxes.lifecycle import Owner, Record, Shape, State

SCHEMA_VERSION = 2

_SCHEMA = """
CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY,
    tenant TEXT,  -- NULL, as the session is, while it waits in the pool
    session TEXT,
    record TEXT NOT NULL,
    UNIQUE (tenant, session)  -- I6: one container per (tenant, session)
);
"""

T = TypeVar("T")


class Registry:
    """Owns the file. One connection, one thread at a time; nothing on the path of a tool call comes here."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._limiter = anyio.CapacityLimiter(1)
        self._db: sqlite3.Connection | None = None

    async def open(self) -> None:
        self._db = await to_thread.run_sync(_connect, self._path, limiter=self._limiter)

    async def aclose(self) -> None:
        if self._db is not None:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(self._db.close, limiter=self._limiter)
            self._db = None

    async def load(self) -> list[Record]:
        def read(db: sqlite3.Connection) -> list[Record]:
            return [_decode(row[0]) for row in db.execute("SELECT record FROM sandboxes ORDER BY rowid")]

        return await self._run(read)

    async def save(self, record: Record) -> None:
        ref = None if record.owner is None else record.owner.ref
        tenant, session = (None, None) if ref is None else (ref.tenant, ref.session)

        def write(db: sqlite3.Connection) -> None:
            db.execute(
                "INSERT INTO sandboxes (id, tenant, session, record) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
                "SET tenant = excluded.tenant, session = excluded.session, record = excluded.record",
                (record.id, tenant, session, _encode(record)),
            )

        await self._run(write)

    async def forget(self, sandbox_id: str) -> None:
        def write(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM sandboxes WHERE id = ?", (sandbox_id,))

        await self._run(write)

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        db = self._db
        if db is None:
            raise RegistryCorrupt("cannot use the registry: it is closed")

        def call() -> T:
            try:
                with db:
                    result = work(db)
            except sqlite3.Error as error:
                raise _explain(error, "use the registry", self._path) from error
            return result

        # Cancelled or not, a commit under way is waited for: "was it saved?" always has an answer.
        return await to_thread.run_sync(call, limiter=self._limiter)


def _connect(path: Path) -> sqlite3.Connection:
    try:
        if not path.exists():
            _make(path)
        db = sqlite3.connect(path, check_same_thread=False)
    except sqlite3.Error as error:
        raise _explain(error, "open the registry", path) from error
    try:
        db.execute("PRAGMA synchronous = FULL")
        (problem,) = db.execute("PRAGMA quick_check(1)").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise RegistryCorrupt(
                f"cannot open the registry: a newer sandboxd wrote it (version {version}, this one knows "
                f"{SCHEMA_VERSION}); upgrade sandboxd"
            )
        if problem == "ok" and 0 < version < SCHEMA_VERSION:
            _migrate(db)
        elif problem != "ok" or version == 0:
            what = "it is empty" if problem == "ok" else f"it is damaged ({problem})"
            raise RegistryCorrupt(f"cannot open the registry: {what}; restore {path.name}, or move it to start afresh")
    except sqlite3.Error as error:
        db.close()
        raise _explain(error, "open the registry", path) from error
    except RegistryCorrupt:
        db.close()
        raise
    return db


def _explain(error: sqlite3.Error, verb: str, path: Path) -> SandboxdError:
    advice = f"restore {path.name}, or move it to start afresh"
    return sqlite_errors.explain(error, verb, path, advice=advice, corrupt=RegistryCorrupt)


def _migrate(db: sqlite3.Connection) -> None:
    """From version 1, in which every sandbox had an owner and none came from a pool. All of it or nothing."""
    records = []
    for tenant, session, text in db.execute("SELECT tenant, session, record FROM sandboxes ORDER BY rowid"):
        try:
            record = json.loads(text)
            record["owner"] = {name: record.pop(name) for name in ("ref", "user", "agent", "env")}
            record |= {"fittings": "", "from_pool": False}
            records.append((record["id"], tenant, session, json.dumps(record)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RegistryCorrupt(f"cannot read a record of the registry: {type(error).__name__}") from error
    with db:
        db.execute("BEGIN IMMEDIATE")
        db.execute("DROP TABLE sandboxes")
        db.execute(_SCHEMA)
        db.executemany("INSERT INTO sandboxes (id, tenant, session, record) VALUES (?, ?, ?, ?)", records)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _make(path: Path) -> None:
    """Make the file whole or not at all: one that is there and empty is damage, never a new registry."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))  # sandbox secrets will be in here
    db = sqlite3.connect(draft)
    db.execute("PRAGMA journal_mode = WAL")
    db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    db.close()
    draft.rename(path)


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
            state=State(fields["state"]),
            generation=fields["generation"],
            container=fields["container"],
            cause=fields["cause"],
            from_pool=fields["from_pool"],
            removal=fields.get("removal"),
        )
    except (ValueError, KeyError, TypeError, InvalidKey) as error:
        raise RegistryCorrupt(f"cannot read a record of the registry: {type(error).__name__}") from error


def _decode_owner(fields: dict[str, Any]) -> Owner:
    return Owner(
        ref=SessionRef.parse(fields["ref"]),
        user=UserId(fields["user"]),
        agent=AgentId(fields["agent"]) if fields["agent"] else None,
        env=fields["env"],
    )
