"""Watcher: finds edits by other programs, from inotify events and from a scan at the start and every `rescan_s`.

An event only says where to look; the file is examined under the owner's lock. The watcher owns one thread, which
`stop` joins. A failure with one owner is logged and does not affect the others.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import watchfiles

from memo.errors import MemoError
from memo.ids import TenantId
from memo.stores.filesystem import documents, sessions
from memo.stores.filesystem.document_files import find_files
from memo.stores.filesystem.home import Home, StillChanging
from memo.stores.filesystem.layout import COMMITS, HIDDEN, REMOVED, STAGED, STAGED_MESSAGES, TENANTS, Owner
from memo.stores.filesystem.tree import Tree

_log = logging.getLogger("memo.stores.filesystem")

_GROUP_MS = 200
_QUIET_MS = 50
_TICK_MS = 1000
_Fingerprint = tuple[tuple[str, int, int, int, int], ...]


class Watcher:
    def __init__(self, path: Path, tree: Tree, *, rescan_s: float, settle_s: float) -> None:
        self._tenants = path / TENANTS
        self._tree = tree
        self._rescan_s = rescan_s
        self._settle_s = settle_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memo-outside-edits", daemon=True)
        self._checked: dict[Owner, _Fingerprint] = {}
        self._warnings: dict[Owner, str] = {}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        """Check the owners that changed, and all owners when a scan is due."""
        self._scan(self._all_owners())
        hints = watchfiles.watch(
            self._tenants,
            watch_filter=None,
            debounce=_GROUP_MS,
            step=_QUIET_MS,
            stop_event=self._stop,
            rust_timeout=_TICK_MS,
            yield_on_timeout=True,
            raise_interrupt=False,
        )
        try:
            self._follow(hints)
        except (OSError, RuntimeError) as error:  # inotify is unavailable or out of watches
            _log.warning("cannot watch %s, scanning every %g s instead: %s", self._tenants, self._rescan_s, error)
            while not self._stop.wait(self._rescan_s):
                self._scan(self._all_owners())

    def _follow(self, hints: Iterable[set[tuple[watchfiles.Change, str]]]) -> None:
        next_scan = time.monotonic()  # at the first tick: the watch began only after the first scan
        lately: set[Owner] = set()
        for changes in hints:
            touched = self._touched({path for _, path in changes})
            # Twice, now and at the next tick: a new directory exists a moment before it is watched.
            self._scan(sorted(touched | lately))
            lately = touched
            if time.monotonic() >= next_scan:
                self._scan(self._all_owners())
                next_scan = time.monotonic() + self._rescan_s

    def _all_owners(self, tenant: TenantId | None = None) -> list[Owner]:
        try:
            return list(sessions.owners_of(self._tree.root, tenant))
        except MemoError as error:
            _log.warning("cannot scan for outside edits: %s", error)
            return []

    def _touched(self, paths: Iterable[str]) -> set[Owner]:
        """Return the owners of the files at or below the paths."""
        found: set[Owner] = set()
        for path in paths:
            tenant, *rest = Path(path).relative_to(self._tenants).parts or ("",)
            if len(rest) < 2:
                if Owner.at(tenant, "sessions", "any") is not None:
                    found.update(self._all_owners(TenantId(tenant)))
                continue
            owner = Owner.at(tenant, rest[0], rest[1])
            if owner is not None:
                found.add(owner)
        return found

    def _scan(self, owners: list[Owner]) -> None:
        while owners and not self._stop.is_set():
            unsettled = [owner for owner in owners if not self._stop.is_set() and not self._check(owner)]
            owners = unsettled
            if owners:
                self._stop.wait(self._settle_s)  # an editor needs a moment, and no event says when it is done

    def _check(self, owner: Owner) -> bool:
        """Commit outside edits as revisions. Return False if a file is still changing."""
        try:
            before = self._fingerprint(owner)
            if before is not None and self._checked.get(owner) == before:
                return True
            self._tree.read(owner, self._reconcile_all, self._settle_s)
        except StillChanging:
            return False
        except MemoError as error:
            self._warn_once(owner, str(error))
            return True
        self._warnings.pop(owner, None)
        if before is not None and before == self._fingerprint(owner) and _is_old(before, self._settle_s):
            self._checked[owner] = before
        return True

    def _reconcile_all(self, home: Home | None) -> None:
        if home is not None:
            for name in documents.document_files(home):
                documents.reconcile(home, name)

    def _warn_once(self, owner: Owner, message: str) -> None:
        if self._warnings.get(owner) != message:  # every scan finds it again
            self._warnings[owner] = message
            _log.warning("cannot commit outside edits of %s: %s", owner, message)

    def _fingerprint(self, owner: Owner) -> _Fingerprint | None:
        """Return a value that changes whenever a document's file or the commit log does, without opening either."""
        directory = self._tree.root.descend(*owner.path)
        if directory is None:
            return None
        with directory:
            found: list[tuple[str, os.stat_result | None]] = [*find_files(directory)]
            hidden = directory.child(HIDDEN)
            if hidden is None:
                return None
            with hidden:
                found += [(name, hidden.stat(name)) for name in (COMMITS, STAGED, STAGED_MESSAGES, REMOVED)]
        return tuple((n, *_signature(status)) for n, status in found if status is not None)


def _signature(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _is_old(fingerprint: _Fingerprint, margin_s: float) -> bool:
    """Return whether all files are older than the margin: a fresh one may change again with the same timestamp."""
    return all(time.time_ns() - changed_ns > margin_s * 1e9 for *_, changed_ns in fingerprint)
