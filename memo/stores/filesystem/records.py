"""Records on disk: one log per tenant, with one line per batch, and an index of where each record is.

The line is the commit. A line that a crash cut short does not count, and the next batch overwrites it. The first line
names the log, so that an index can detect that another log has replaced it. Values stay on disk; the index holds their
locations. Everything is below the store's hidden directory, which is neither edited nor watched.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import uuid
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from memo.errors import Corrupt, InvalidKey, ProviderError, Unavailable
from memo.ids import TenantId
from memo.messages import decode_object
from memo.records import (
    Record,
    RecordChange,
    RecordKey,
    RecordScope,
    Value,
    checked_group,
    encode_record,
    needs_current,
    outcome,
    tenant_of,
)
from memo.spool import DiskSpool
from memo.stores.filesystem.directory import (
    Directory,
    append_lines,
    closing,
    disk_errors,
    end_of_lines,
    locked,
    open_lock,
    write_all,
)
from memo.stores.filesystem.layout import HIDDEN
from memo.stores.options import StoreOptions

_log = logging.getLogger("memo.stores.filesystem")

LOG = "records.jsonl"
LOCK = "records.lock"
NEXT = "records.next"
NAME_BYTES = 43
_NAME = re.compile(rb'\{"log":"[0-9a-f]{32}"\}\n')
COMPACT_ABOVE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Location:
    """Where a record's value is: the line, and the position in its batch."""

    offset: int
    length: int
    number: int
    group: str
    share_bytes: int


class RecordLog:
    """The index of one tenant's log. Blocking, one call at a time; other processes may write the same log."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._index: dict[RecordScope, dict[str, _Location]] = {}
        self._name = b""
        self._end = 0
        self._live_bytes = 0

    def apply(self, directory: Directory, changes: Sequence[RecordChange]) -> list[Value | None]:
        with disk_errors(f"lock {directory.where(LOCK)}"):
            lock = open_lock(directory.fd, LOCK)
        with (
            closing(lock),
            locked(lock, directory.where(LOCK), exclusive=True),
            _OpenLog(directory, create=True) as fd,
        ):
            if fd is None:
                raise Unavailable(f"cannot write {directory.where(LOG)}: it was removed at the same time; retry")
            self._refresh(fd)
            entries, results = self._work_out(fd, changes)
            line = _encode_line(entries)
            with disk_errors(f"write {directory.where(LOG)}"):
                self._end = append_lines(fd, line, self._end)
            self._fold(entries, self._end - len(line), len(line))
            if self._end > COMPACT_ABOVE_BYTES and self._end > 2 * self._live_bytes:
                self._compact_if_possible(directory, fd)
            return results

    def read(self, directory: Directory, key: RecordKey) -> Record | None:
        with _OpenLog(directory) as fd:
            if fd is None:
                return None
            self._refresh(fd)
            place = self._index.get(key.scope, {}).get(key.id)
            return None if place is None else self._load(fd, key.id, place, {})

    def list_of(self, directory: Directory, scope: RecordScope, group: str | None) -> list[Record]:
        with _OpenLog(directory) as fd:
            if fd is None:
                return []
            self._refresh(fd)
            lines: dict[int, list[dict[str, Any]]] = {}
            found = self._index.get(scope, {}).items()
            return [self._load(fd, id, place, lines) for id, place in found if group in (None, place.group)]

    def _forget(self) -> None:
        self._index = {}
        self._name = b""
        self._end = self._live_bytes = 0

    def _refresh(self, fd: int) -> None:
        """Index the lines that are new. Takes no lock, because only complete lines count."""
        with disk_errors(f"read {LOG}"):
            name = os.pread(fd, NAME_BYTES, 0)
            end = end_of_lines(fd)
            if _NAME.fullmatch(name) is None:
                raise self._damaged()
            if name != self._name:
                self._forget()  # the log was rewritten, so every location has changed
                self._name, self._end = name, len(name)
            for line in _lines(fd, self._end, end):
                self._fold(self._decode_line(line), self._end, len(line))
                self._end += len(line)

    def _work_out(self, fd: int, changes: Sequence[RecordChange]) -> tuple[list[dict[str, Any]], list[Value | None]]:
        pending: dict[RecordKey, Record | None] = {}
        entries: list[dict[str, Any]] = []
        results: list[Value | None] = []
        for change in changes:
            key = change.key
            if key not in pending and needs_current(change):
                place = self._index.get(key.scope, {}).get(key.id)
                pending[key] = None if place is None else self._load(fd, key.id, place, {})
            after = pending[key] = outcome(change, pending.get(key))
            entry: dict[str, Any] = {
                "tenant": key.scope.tenant, "kind": key.scope.kind, "place": key.scope.place, "id": key.id,
            }  # fmt: skip
            if after is not None:
                encode_record(key, after, self._limit_bytes)
                entry |= {"group": after.group, "value": after.value}
            entries.append(entry)
            results.append(None if after is None else after.value)
        return entries, results

    def _fold(self, entries: Sequence[dict[str, Any]], offset: int, length: int) -> None:
        for number, entry in enumerate(entries):
            try:
                scope = RecordScope.of(entry["tenant"], entry["kind"], entry["place"])
                records = self._index.setdefault(scope, {})
                before = records.get(entry["id"])
                self._live_bytes -= before.share_bytes if before else 0
                if "value" in entry:
                    place = _Location(offset, length, number, entry["group"], length // len(entries))
                    records[entry["id"]] = place
                    self._live_bytes += place.share_bytes
                elif before is not None:
                    del records[entry["id"]]
            except (KeyError, TypeError, InvalidKey):
                raise self._damaged() from None

    def _load(self, fd: int, id: str, place: _Location, lines: dict[int, list[dict[str, Any]]]) -> Record:
        if place.offset not in lines:
            with disk_errors(f"read {LOG}"):
                lines[place.offset] = self._decode_line(os.pread(fd, place.length, place.offset))
        value = lines[place.offset][place.number].get("value")
        if not isinstance(value, dict):
            raise self._damaged()
        return Record(id, value, place.group)

    def _decode_line(self, line: bytes) -> list[dict[str, Any]]:
        entries = decode_object(line, LOG).get("changes")
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise self._damaged()
        return entries

    def _damaged(self) -> Corrupt:
        return Corrupt(f"cannot read {LOG}: a line is damaged")

    def _compact_if_possible(self, directory: Directory, fd: int) -> None:
        """Compact, but never raise: the batch is already committed."""
        try:
            self._compact(directory, fd)
        except ProviderError as error:
            _log.warning("cannot compact %s, so it keeps growing: %s", directory.where(LOG), error)

    def _compact(self, directory: Directory, fd: int) -> None:
        """Rewrite the log with the live records. A reader that has the old file open continues to use it."""
        directory.stage(NEXT, _new_name())
        with disk_errors(f"write {directory.where(NEXT)}"):
            target = os.open(NEXT, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory.fd)
            with closing(target):
                for scope, records in self._index.items():
                    head = {"tenant": scope.tenant, "kind": scope.kind, "place": scope.place}
                    for id, place in records.items():
                        record = self._load(fd, id, place, {})
                        entry = {**head, "id": id, "group": record.group, "value": record.value}
                        write_all(target, _encode_line([entry]))
                os.fsync(target)
        directory.move(NEXT, directory, LOG)
        self._forget()


class _OpenLog:
    """A context manager that opens the log; None if it does not exist."""

    def __init__(self, directory: Directory, create: bool = False) -> None:
        self._directory = directory
        self._create = create
        self._fd: int | None = None

    def __enter__(self) -> int | None:
        self._fd = self._directory.open_file(LOG, os.O_RDWR)
        if self._fd is None and self._create:
            self._directory.stage(NEXT, _new_name())
            self._directory.move(NEXT, self._directory, LOG)  # a log always starts with its name
            self._fd = self._directory.open_file(LOG, os.O_RDWR)
        return self._fd

    def __exit__(self, *exc: object) -> None:
        if self._fd is not None:
            os.close(self._fd)


def _lines(fd: int, start: int, end: int) -> Iterator[bytes]:
    """Yield the complete lines between two offsets, with their newlines."""
    rest = b""
    while start < end:
        block = os.pread(fd, min(1 << 20, end - start), start)
        if not block:
            return
        start += len(block)
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line + b"\n"


def _new_name() -> bytes:
    return b'{"log":"%s"}\n' % uuid.uuid4().hex.encode()


def _encode_line(entries: Sequence[dict[str, Any]]) -> bytes:
    return json.dumps({"changes": entries}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


R = TypeVar("R")

RECORDS = "records"
SPOOLS = "spools"


class RecordLogs:
    """The logs of recently used tenants. A log is used by one thread at a time."""

    MOST = 256

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._logs: OrderedDict[TenantId, tuple[RecordLog, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()

    def use(self, tenant: TenantId, work: Callable[[RecordLog], R]) -> R:
        with self._lock:
            if tenant not in self._logs:
                self._logs[tenant] = (RecordLog(self._limit_bytes), threading.Lock())
            self._logs.move_to_end(tenant)
            log, turn = self._logs[tenant]
            while len(self._logs) > self.MOST:
                self._logs.popitem(last=False)  # a thread may still use it; it is only an index
        with turn:
            return work(log)


class FilesystemRecords(ABC):
    path: Path
    options: StoreOptions
    _record_logs: RecordLogs | None = None

    @abstractmethod
    async def _on_root(self, work: Callable[[Directory], R]) -> R:
        """Run the work in a thread with the open root, or raise Unavailable if the store is closed."""

    async def apply_records(self, changes: Sequence[RecordChange]) -> list[Value | None]:
        if not changes:
            return []
        tenant = tenant_of(changes)

        def apply(root: Directory) -> list[Value | None]:
            with root.make_path(HIDDEN, RECORDS, tenant) as directory:
                return self._logs().use(tenant, lambda log: log.apply(directory, changes))

        return await self._on_root(apply)

    async def read_record(self, key: RecordKey) -> Record | None:
        return await self._query(key.scope.tenant, lambda log, directory: log.read(directory, key))

    async def list_records(self, scope: RecordScope, group: str | None = None) -> list[Record]:
        wanted = None if group is None else checked_group(group)
        found = await self._query(scope.tenant, lambda log, directory: log.list_of(directory, scope, wanted))
        return found or []

    def spool(self, tenant: str, place: str) -> DiskSpool:
        """Return the spool of one place: large bytes are files here, not records."""
        return DiskSpool(self.path / HIDDEN / SPOOLS / TenantId(tenant), place)

    async def _query(self, tenant: TenantId, query: Callable[[RecordLog, Directory], R]) -> R | None:
        def read(root: Directory) -> R | None:
            directory = root.descend(HIDDEN, RECORDS, tenant)
            if directory is None:
                return None  # nothing was ever written
            with directory:
                return self._logs().use(tenant, lambda log: query(log, directory))

        return await self._on_root(read)

    def _logs(self) -> RecordLogs:
        if self._record_logs is None:
            self._record_logs = RecordLogs(self.options.limits.message_bytes)
        return self._record_logs
