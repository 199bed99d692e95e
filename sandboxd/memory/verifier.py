"""Verifier: compares mirrors with their manifests by hash, in the background and on request, and repairs drift.

Drift is a change to the directory by another program: a changed, missing or additional file. A mirror that only lags
behind its store has not drifted; it is refreshed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import anyio
import structlog

from memo.errors import InvalidKey
from memo.paths import MEMO_ROOT, key_at
from sandboxd.errors import HostFull, StoreUnavailable
from sandboxd.memory import tree
from sandboxd.memory.announcer import Announcer
from sandboxd.memory.key_locks import KeyLocks
from sandboxd.memory.manifest import Shown
from sandboxd.memory.mirror import Mirror, Mirrors
from sandboxd.memory.outbox import PendingWrite
from sandboxd.memory.outcomes import Key
from sandboxd.memory.refresher import Refresher
from sandboxd.memory.store_client import StoreClient
from sandboxd.memory.text import Item, Text, is_artifact, relative_of
from sandboxd.models.mirror import MirrorFile

_log = structlog.get_logger()

_REST_FACTOR = 50.0  # of the time spent: verifying takes at most a fiftieth of a core


class Verifier:
    def __init__(
        self,
        mirrors: Mirrors,
        store: StoreClient,
        locks: KeyLocks,
        refresher: Refresher,
        announcer: Announcer,
        pending: Callable[[Key], PendingWrite | None],
        is_shown: Callable[[str], bool],
    ) -> None:
        """`is_shown` returns whether a sandbox's container still shows its mirror; if not, it is beyond repair."""
        self._mirrors = mirrors
        self._store = store
        self._locks = locks
        self._refresher = refresher
        self._announcer = announcer
        self._pending = pending
        self._is_shown = is_shown

    async def run(self, every_s: float, blob_bytes: int) -> None:
        """Verify every mirror and keep the blob cache within its bound, for ever."""
        rest_s = every_s
        while True:
            await anyio.sleep(rest_s)
            started = time.monotonic()
            for mirror in self._mirrors.all():
                try:
                    await self.verify(mirror)
                except (StoreUnavailable, HostFull) as error:
                    _log.warning("cannot verify a mirror", sandbox=mirror.sandbox_id, error=str(error))
                except Exception:  # noqa: BLE001  # one bad mirror must not end the daemon
                    _log.exception("cannot verify a mirror", sandbox=mirror.sandbox_id)
            try:
                await self._mirrors.in_thread(self._mirrors.blobs.prune, blob_bytes)
            except HostFull as error:
                _log.warning("cannot prune the blob cache", error=str(error))
            rest_s = max(every_s, (time.monotonic() - started) * _REST_FACTOR)

    async def verify(self, mirror: Mirror) -> int:
        """Compare one mirror with what it should show, and repair it. Return how many files were repaired."""
        if not mirror.takes_changes or mirror.is_dropped or not self._is_shown(mirror.sandbox_id):
            return 0
        before = dict(mirror.shown)
        found = await self._mirrors.in_thread(tree.scan, mirror.root, is_quiet=False)
        repaired = 0
        for relative in sorted(before.keys() | found.keys()):
            is_as_before = mirror.shown.get(relative) is before.get(relative)  # not refreshed during the scan
            if is_as_before and _difference(relative, before, found) is not None:
                repaired += await self._repair(mirror, relative)
        await self._catch_up(mirror)
        await self._mirrors.in_thread(_remove_empty, mirror)
        return repaired

    async def inspect(self, mirror: Mirror) -> list[MirrorFile]:
        """Compare every file with the store, by hash."""
        listed = {relative_of(i.key): i for i in await self._store.list_session(mirror.ref, mirror.user)}
        found = await self._mirrors.in_thread(tree.scan, mirror.root, is_quiet=False)
        files = []
        for relative in sorted(mirror.shown.keys() | found.keys()):
            shown, item = mirror.shown.get(relative), listed.get(relative)
            sha256 = await self._store_hash(item)
            in_sync = sha256 is not None and found.get(relative) == sha256
            files.append(_file(mirror, relative, shown, found.get(relative), item, in_sync=in_sync))
        missing = [item for relative, item in listed.items() if relative not in mirror.shown and item.sha256]
        files += [_file(mirror, relative_of(item.key), None, None, item, in_sync=False) for item in missing]
        return files

    async def _store_hash(self, item: Item | None) -> str | None:
        if item is None or item.sha256 is not None:
            return None if item is None else item.sha256
        text = await self._store.read(item.key)
        return None if text is None else text.sha256

    async def _repair(self, mirror: Mirror, relative: str) -> bool:
        """Repair a file if it still differs; return whether it did."""
        try:
            key = key_at(f"{MEMO_ROOT}/{relative}", mirror.ref, mirror.user)
        except InvalidKey:
            self._announcer.drift(mirror.ref, relative, "extra")
            await self._mirrors.remove(mirror, relative)  # not a path that a mirror uses
            return True
        # Checked again under the key's lock: an install writes the file before it records it.
        async with self._locks.hold(key):
            found = await self._mirrors.in_thread(tree.look_at, mirror.root, relative)
            how = _difference(relative, mirror.shown, found)
            if how is None or not mirror.takes_changes or mirror.is_dropped:
                return False
            self._announcer.drift(mirror.ref, relative, how)
            shown = mirror.shown.get(relative)
            # An unknown file may be the only copy of a text while the store is down, so check the store first.
            text = await (self._store.read(key) if shown is None else self._intact(mirror, key, shown))
            if mirror.is_dropped or not mirror.takes_changes or mirror.shown.get(relative) is not shown:
                return False  # it was refilled in the meantime
            mirror.shown.pop(relative, None)  # so that the revision it claims to show counts as newer
            try:
                if text is None:
                    await self._mirrors.remove(mirror, relative)
                else:
                    is_pending = shown is not None and shown.pending
                    await self._mirrors.install(
                        key, text, revisioned=self._store.has_revisions(key), pending=is_pending
                    )
            except HostFull:
                if shown is not None:
                    mirror.shown.setdefault(relative, shown)
                raise
            return True

    async def _intact(self, mirror: Mirror, key: Key, shown: Shown) -> Text | None:
        """Return what the file should show, from the blob cache if the blob is intact."""
        blobs = self._mirrors.blobs
        await self._mirrors.in_thread(blobs.evict_damaged, mirror.ref.tenant, shown.sha256)
        found = await self._mirrors.in_thread(blobs.read, mirror.ref.tenant, shown.sha256)
        if found is not None:
            return Text(found, shown.sha256, shown.revision)
        if shown.pending:
            pending = self._pending(key)
            return None if pending is None else pending.text
        return await self._store.read(key)

    async def _catch_up(self, mirror: Mirror) -> None:
        """Refresh what the store has and the mirror lacks, in case the feed missed it. Plain providers have no feed."""
        if not self._store.capabilities.changes:
            return
        before = dict(mirror.shown)
        listed = await self._store.list_files(mirror.ref, mirror.user)
        for relative, revision, *_ in listed:
            if revision is not None and mirror.is_behind(relative, revision):
                await self._refresher.hint(key_at(f"{MEMO_ROOT}/{relative}", mirror.ref, mirror.user))
        for relative in before.keys() - {line[0] for line in listed}:  # deleted, unless it was written just now
            if not is_artifact(relative) and mirror.shown.get(relative) is before[relative]:
                await self._refresher.hint(key_at(f"{MEMO_ROOT}/{relative}", mirror.ref, mirror.user))


def _remove_empty(mirror: Mirror) -> None:
    with mirror.guard:
        if not mirror.is_dropped:
            tree.remove_empty(mirror.root)


def _difference(relative: str, shown: Mapping[str, Shown], found: Mapping[str, str | None]) -> str | None:
    if relative not in found:
        return "missing" if relative in shown else None
    if relative not in shown:
        return "extra"
    return None if found[relative] == shown[relative].sha256 else "content"


def _file(
    mirror: Mirror, relative: str, shown: Shown | None, sha256: str | None, item: Item | None, *, in_sync: bool
) -> MirrorFile:
    committed = item.at.timestamp() if item is not None and item.at is not None else None
    lag_s = 0.0
    if committed is not None:
        until = shown.refreshed_at if in_sync and shown is not None else datetime.now(UTC).timestamp()
        lag_s = max(0.0, until - max(committed, mirror.since))
    return MirrorFile(
        path=f"{MEMO_ROOT}/{relative}",
        revision=0 if shown is None else shown.revision,
        sha256=sha256 or "",
        size=0 if shown is None else shown.size_bytes,
        in_sync=in_sync,
        lag_ms=round(lag_s * 1000, 3),
        pending=shown is not None and shown.pending,
    )
