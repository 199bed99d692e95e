"""Records of a filesystem store: one log for each tenant; and spools, which are files here. Mixed into the store.

Everything is below the store's own hidden directory, where nobody edits and nobody watches.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from memo.ids import TenantId
from memo.records import Record, RecordChange, RecordKey, RecordScope, Value, checked_group, tenant_of
from memo.spool.disk import DiskSpool
from memo.stores.filesystem.disk import Directory
from memo.stores.filesystem.layout import HIDDEN
from memo.stores.filesystem.record_log import RecordLog
from memo.stores.options import StoreOptions

R = TypeVar("R")

RECORDS = "records"
SPOOLS = "spools"


class RecordLogs:
    """The logs of the tenants used lately. A log's index belongs to one thread at a time."""

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
                self._logs.popitem(last=False)  # whoever still works with it may; it is only an index
        with turn:
            return work(log)


class FilesystemRecords(ABC):
    path: Path
    options: StoreOptions
    _record_logs: RecordLogs | None = None

    @abstractmethod
    async def _on_root(self, work: Callable[[Directory], R]) -> R:
        """Run the work in a thread with the open root; Unavailable if the store is closed."""

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
        """Return the spool for bytes of one place: a file holds them better than a record."""
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
