"""Verifying mirrors by hash: one at a time, slowly, and on request. Drift is reported and repaired.

Drift is what somebody did to the directory behind our back: a changed, missing or additional file. A mirror that is
only behind its store is no drift; it is refreshed.
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
from sandboxd.mirror import tree
from sandboxd.mirror.announcing import Announcer
from sandboxd.mirror.answers import Key, MirrorFile
from sandboxd.mirror.asking import Source
from sandboxd.mirror.live import Mirror, Mirrors
from sandboxd.mirror.manifest import Shown
from sandboxd.mirror.outbox import Pending
from sandboxd.mirror.refreshing import Refresher
from sandboxd.mirror.texts import Item, Text, relative_of
from sandboxd.mirror.turns import Turns

_log = structlog.get_logger()

_LEAST_REST = 50.0  # verifying takes at most a fiftieth of a core, however much there is to verify


class Verifier:
    def __init__(
        self,
        mirrors: Mirrors,
        source: Source,
        turns: Turns,
        refresher: Refresher,
        announcer: Announcer,
        pending: Callable[[Key], Pending | None],
        is_shown: Callable[[str], bool],
    ) -> None:
        """`is_shown` says whether a sandbox's container still shows its mirror; if not, nothing here can repair it."""
        self._mirrors = mirrors
        self._source = source
        self._turns = turns
        self._refresher = refresher
        self._announcer = announcer
        self._pending = pending
        self._is_shown = is_shown

    async def run(self, every_s: float, blob_bytes: int) -> None:
        """Verify every mirror, and keep the blob cache within its bound, for ever."""
        rest_s = every_s
        while True:
            await anyio.sleep(rest_s)
            started = time.monotonic()
            for mirror in self._mirrors.all():
                try:
                    await self.verify(mirror)
                except (StoreUnavailable, HostFull) as error:
                    _log.warning("cannot verify a mirror", sandbox=mirror.sandbox_id, error=str(error))
                except Exception:  # noqa: BLE001  # what went wrong with one mirror must not end the daemon
                    _log.exception("cannot verify a mirror", sandbox=mirror.sandbox_id)
            try:
                await self._mirrors.in_thread(self._mirrors.blobs.prune, blob_bytes)
            except HostFull as error:
                _log.warning("cannot prune the blob cache", error=str(error))
            rest_s = max(every_s, (time.monotonic() - started) * _LEAST_REST)

    async def verify(self, mirror: Mirror) -> int:
        """Compare one mirror with what it should show, and set right what differs. Return how much did."""
        if not mirror.takes_changes or mirror.is_dropped or not self._is_shown(mirror.sandbox_id):
            return 0
        before = dict(mirror.shown)
        found = await self._mirrors.in_thread(tree.scan, mirror.root, is_quiet=False)
        repaired = 0
        for relative in sorted(before.keys() | found.keys()):
            is_as_before = mirror.shown.get(relative) is before.get(relative)  # not refreshed while files were hashed
            if is_as_before and _difference(relative, before, found) is not None:
                repaired += await self._repair(mirror, relative)
        await self._catch_up(mirror)
        return repaired

    async def inspect(self, mirror: Mirror) -> list[MirrorFile]:
        """Compare every file with the store, by hash."""
        listed = {relative_of(i.key): i for i in await self._source.list_session(mirror.ref, mirror.user)}
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
        text = await self._source.read(item.key)
        return None if text is None else text.sha256

    async def _repair(self, mirror: Mirror, relative: str) -> bool:
        """Set a file right if it still differs, and say whether it did."""
        try:
            key = key_at(f"{MEMO_ROOT}/{relative}", mirror.ref, mirror.user)
        except InvalidKey:
            self._announcer.drift(mirror.ref, relative, "extra")
            await self._mirrors.remove(mirror, relative)  # nothing of ours can ever be there
            return True
        # Looked at again in the key's turn: a text that is just being installed is there before it is noted.
        async with self._turns.of(key):
            found = await self._mirrors.in_thread(tree.look_at, mirror.root, relative)
            how = _difference(relative, mirror.shown, found)
            if how is None or not mirror.takes_changes or mirror.is_dropped:
                return False
            self._announcer.drift(mirror.ref, relative, how)
            shown = mirror.shown.get(relative)
            # A file that nobody knows of may be all that is left of a text while the store is away: ask it first.
            text = await (self._source.read(key) if shown is None else self._intact(mirror, key, shown))
            if mirror.is_dropped or not mirror.takes_changes or mirror.shown.get(relative) is not shown:
                return False  # it was filled anew meanwhile
            mirror.shown.pop(relative, None)  # so that even the revision that it claims to show is newer
            try:
                if text is None:
                    await self._mirrors.remove(mirror, relative)
                else:
                    is_pending = shown is not None and shown.pending
                    await self._mirrors.install(
                        key, text, revisioned=self._source.has_revisions(key), pending=is_pending
                    )
            except HostFull:
                if shown is not None:
                    mirror.shown.setdefault(relative, shown)
                raise
            return True

    async def _intact(self, mirror: Mirror, key: Key, shown: Shown) -> Text | None:
        """Return what the file should show: from the blob cache, unless its link was tampered with, too."""
        blobs = self._mirrors.blobs
        await self._mirrors.in_thread(blobs.evict_damaged, mirror.ref.tenant, shown.sha256)
        found = await self._mirrors.in_thread(blobs.read, mirror.ref.tenant, shown.sha256)
        if found is not None:
            return Text(found, shown.sha256, shown.revision)
        if shown.pending:
            waiting = self._pending(key)
            return None if waiting is None else waiting.text
        return await self._source.read(key)

    async def _catch_up(self, mirror: Mirror) -> None:
        """Hint at whatever the store has and the mirror does not: the net under the feed. Plain providers have none."""
        if not self._source.capabilities.changes:
            return
        for relative, revision, *_ in await self._source.lines(mirror.ref, mirror.user):
            if revision is not None and mirror.is_behind(relative, revision):
                await self._refresher.hint(key_at(f"{MEMO_ROOT}/{relative}", mirror.ref, mirror.user))


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
