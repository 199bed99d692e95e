"""Outbox: writes that the store could not accept, kept on disk in order until it can.

Owns one SQLite file. An entry that `keep` has numbered survives a crash. The outbox never calls the store; delivery
reports an entry's outcome, and the entry is removed once the outcome is on disk too.
"""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import anyio

from memo.documents import ABSENT, ANY, ArtifactKey, Author, DocumentKey, DocumentName, Expected, sha256_of
from memo.errors import Absent, InvalidContent, InvalidKey, MemoError, Redacted, TooLarge, Unsupported
from memo.ids import SessionId
from memo.paths import path_of
from sandboxd.errors import HostFull
from sandboxd.host_database import HostDatabase
from sandboxd.memory.outcomes import Key
from sandboxd.memory.text import Text
from sandboxd.models.mirror import RefusedWrite

MOST_ENTRIES = 10_000
MOST_BYTES = 256 * 1024 * 1024

_ADVICE = "restore it, or move it away and lose the writes queued in it"

_ENTRIES = """
CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL,
    kind TEXT NOT NULL,
    content BLOB NOT NULL,
    expected TEXT NOT NULL,
    actor TEXT NOT NULL,
    session TEXT,
    reason TEXT NOT NULL,
    request TEXT NOT NULL,
    at REAL NOT NULL,
    attempt TEXT,  -- the hash that a delivery under way would produce, for stores without request ids
    refusal TEXT,  -- why the store will never accept it; the entry is kept
    code TEXT,  -- of the refusal, so that a retry of the request gets the same error
    based_on TEXT,  -- the hash of the text that an artifact may replace; NULL: any
    UNIQUE (key, request)
)
"""
# The outcome of a key's last delivered write, on which the next one is based.
_CHAINS = "CREATE TABLE IF NOT EXISTS chains (key TEXT PRIMARY KEY, target TEXT NOT NULL, revision INTEGER NOT NULL)"


def _create(db: sqlite3.Connection) -> None:
    """Create the tables, or complete those of a daemon that wrote no version number and perhaps not every column."""
    db.execute(_ENTRIES)
    db.execute(_CHAINS)
    present = {row[1] for row in db.execute("PRAGMA table_info(entries)")}
    for column in ("code", "based_on"):
        if column not in present:
            db.execute(f"ALTER TABLE entries ADD COLUMN {column} TEXT")


_MIGRATIONS = (_create,)

_INSERT = """
INSERT INTO entries (key, kind, content, expected, actor, session, reason, request, at, based_on)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

# Without conflicts: such an error carries the current document, which is not known here.
_REFUSALS = {kind.code: kind for kind in (InvalidKey, InvalidContent, TooLarge, Absent, Redacted, Unsupported)}

Kind = Literal["write", "append", "artifact"]
Base = Expected | Literal["previous"]


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """What a key becomes once its queued writes are delivered. The text is None if their base is not known."""

    number: int
    text: Text | None


@dataclass(frozen=True, slots=True)
class Kept:
    """An entry as its caller sees it."""

    number: int
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Entry:
    number: int
    key: Key
    kind: Kind
    content: str
    expected: Base
    author: Author
    attempt: str | None
    at: float
    based_on: str | None = None


@dataclass(frozen=True, slots=True)
class Chain:
    """Where a key's queued writes go: to the document, or to the copy that holds a conflicting text."""

    target: DocumentName
    revision: int


class Outbox:
    """Pending texts are held in memory, within the limits."""

    def __init__(self, path: Path) -> None:
        self._database = HostDatabase(path, "the outbox", _MIGRATIONS, advice=_ADVICE, purpose="queue writes")
        self._pending: dict[Key, PendingWrite] = {}
        self._count = 0
        self._bytes = 0
        self._delivered: dict[int, int] = {}
        self._refused: dict[int, tuple[Key, RefusedWrite]] = {}
        self.news = anyio.Event()

    async def open(self) -> None:
        await self._database.open()
        await self._database.run(self._load)

    async def aclose(self) -> None:
        await self._database.aclose()

    def pending(self, key: Key) -> PendingWrite | None:
        return self._pending.get(key)

    def delivered(self, number: int) -> int | None:
        """Return the revision of a recently delivered entry, if it went to its own document."""
        return self._delivered.get(number)

    def waiting_keys(self) -> list[Key]:
        """Return every key that has queued writes."""
        return list(self._pending)

    def refused(self) -> list[tuple[Key, RefusedWrite]]:
        """Return every write that the store refused permanently, oldest first."""
        return list(self._refused.values())

    def __len__(self) -> int:
        """How many writes are queued, without those refused permanently."""
        return self._count - len(self._refused)

    async def keep(
        self,
        key: Key,
        kind: Kind,
        content: str,
        expected: Base,
        author: Author,
        shown: Text | None,
        *,
        based_on: str | None = None,
    ) -> int:
        """Queue a write durably and return its number. Its author has a request id, so that delivery is repeatable."""
        size_bytes = len(content.encode())
        if self._count >= MOST_ENTRIES or self._bytes + size_bytes > MOST_BYTES:
            raise HostFull(
                f"cannot queue another write: {len(self)} are waiting for the store, "
                f"and {len(self._refused)} that it refused are kept"
            )
        row = (
            _encode_key(key),
            kind,
            content.encode(),
            _encode_base(expected),
            author.actor,
            author.session,
            author.reason,
            author.request or "",
            time.time(),
            based_on,
        )

        def work(db: sqlite3.Connection) -> int:
            return db.execute(_INSERT, row).lastrowid or 0

        number = await self._database.run(work)
        self._count += 1
        self._bytes += size_bytes
        self._pending[key] = PendingWrite(number, None if shown is None else Text(shown.encoded, shown.sha256, -number))
        self.news.set()
        return number

    async def find(self, key: Key, author: Author) -> Kept | None:
        """Return the entry of this request, if any. If it was refused, raise the same refusal."""
        if not self._count or author.request is None:
            return None
        query = "SELECT number, content, refusal, code FROM entries WHERE key = ? AND request = ?"
        row = await self._database.run(lambda db: db.execute(query, (_encode_key(key), author.request)).fetchone())
        if row is None:
            return None
        number, content, refusal, code = row
        if refusal is not None:
            raise _REFUSALS.get(code, MemoError)(refusal)
        return Kept(int(number), sha256_of(bytes(content)), len(content))

    async def heads(self) -> list[int]:
        """Return the oldest entry of every key, oldest first, without those refused permanently."""
        return await self._database.run(
            lambda db: [
                int(row[0])
                for row in db.execute(
                    "SELECT min(number) FROM entries WHERE refusal IS NULL GROUP BY key ORDER BY min(number)"
                )
            ]
        )

    async def entry(self, number: int) -> tuple[Entry, Chain | None]:
        def work(db: sqlite3.Connection) -> tuple[Entry, Chain | None]:
            row = db.execute(
                "SELECT number, key, kind, content, expected, actor, session, reason, request, attempt, at, based_on "
                "FROM entries WHERE number = ?",
                (number,),
            ).fetchone()
            chain = db.execute("SELECT target, revision FROM chains WHERE key = ?", (row[1],)).fetchone()
            session = None if row[6] is None else SessionId(row[6])
            author = Author(row[5], session, row[7], row[8])
            content = bytes(row[3]).decode()
            key, expected = _decode_key(row[1]), _decode_base(row[4])
            entry = Entry(row[0], key, row[2], content, expected, author, row[9], row[10], row[11])
            return entry, None if chain is None else Chain(DocumentName(chain[0]), chain[1])

        return await self._database.run(work)

    async def attempt(self, number: int, sha256: str) -> None:
        await self._database.run(
            lambda db: db.execute("UPDATE entries SET attempt = ? WHERE number = ?", (sha256, number))
        )

    async def settle(self, entry: Entry, chain: Chain | None) -> bool:
        """Remove an entry that the store has. Return whether it was the last one of its key."""

        def work(db: sqlite3.Connection) -> bool:
            key = _encode_key(entry.key)
            db.execute("DELETE FROM entries WHERE number = ?", (entry.number,))
            is_last = _end_chain(db, key)
            if chain is not None and not is_last:
                db.execute(
                    "INSERT OR REPLACE INTO chains (key, target, revision) VALUES (?, ?, ?)",
                    (key, chain.target, chain.revision),
                )
            return is_last

        is_last = await self._database.run(work)
        self._count -= 1
        self._bytes -= len(entry.content.encode())
        if isinstance(entry.key, DocumentKey) and chain is not None and chain.target == entry.key.name:
            self._delivered[entry.number] = chain.revision
            if len(self._delivered) > MOST_ENTRIES:
                self._delivered.pop(next(iter(self._delivered)))
        if is_last:
            self._pending.pop(entry.key, None)
        return is_last

    async def refuse(self, entry: Entry, why: str, code: str) -> bool:
        """Mark an entry as refused permanently and keep it. Return whether its key has no other queued writes."""

        def work(db: sqlite3.Connection) -> bool:
            db.execute("UPDATE entries SET refusal = ?, code = ? WHERE number = ?", (why, code, entry.number))
            return _end_chain(db, _encode_key(entry.key))

        is_last = await self._database.run(work)
        self._refused[entry.number] = _refused(entry.key, entry.number, len(entry.content.encode()), entry.at, why)
        if is_last:
            self._pending.pop(entry.key, None)
        return is_last

    def _load(self, db: sqlite3.Connection) -> None:
        rows = db.execute("SELECT number, key, kind, content, at, refusal FROM entries ORDER BY number").fetchall()
        for number, encoded_key, kind, content, at, refusal in rows:
            self._count += 1
            self._bytes += len(content)
            key = _decode_key(encoded_key)
            if refusal is not None:
                self._refused[number] = _refused(key, number, len(content), at, refusal)
                continue
            before = self._pending.get(key)
            if kind != "append":
                text: Text | None = Text.of(bytes(content), -number)
            elif before is not None and before.text is not None:
                text = Text.of(before.text.encoded + bytes(content), -number)
            else:
                text = None  # its base is in the store; the mirror still shows the result
            self._pending[key] = PendingWrite(number, text)
        if self._pending:
            self.news.set()


def _end_chain(db: sqlite3.Connection, key: str) -> bool:
    """Forget the chain of a key that has no queued writes left, and return whether that is so.

    The next write, perhaps weeks later, applies to the document again and not to an old copy of it.
    """
    (left,) = db.execute("SELECT count(*) FROM entries WHERE key = ? AND refusal IS NULL", (key,)).fetchone()
    if not left:
        db.execute("DELETE FROM chains WHERE key = ?", (key,))
    return not left


def _refused(key: Key, number: int, size_bytes: int, at: float, why: str) -> tuple[Key, RefusedWrite]:
    when = datetime.fromtimestamp(at, UTC)
    return key, RefusedWrite(path=str(path_of(key)), number=number, size=size_bytes, at=when, why=why)


def _encode_key(key: Key) -> str:
    if isinstance(key, ArtifactKey):
        return json.dumps(["artifact", key.session.tenant, key.session.session, key.tool_call])
    return json.dumps([str(key.scope), key.tenant, key.owner, key.name])


def _decode_key(text: str) -> Key:
    kind, tenant, owner, name = json.loads(text)
    if kind == "artifact":
        return ArtifactKey.of(f"{tenant}:{owner}", name)
    return DocumentKey.of(tenant, owner, kind, name)


def _encode_base(expected: Base) -> str:
    if expected is ANY:
        return "any"
    if expected is ABSENT:
        return "absent"
    return str(expected)


def _decode_base(text: str) -> Base:
    if text == "any":
        return ANY
    if text == "absent":
        return ABSENT
    return "previous" if text == "previous" else int(text)
