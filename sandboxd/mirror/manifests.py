"""Keeping manifests true: written soon after the files they tell of, and never more often than they are worth.

Owns no file; the mirrors do. A manifest that cannot be written now is written later.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import anyio
import structlog

from sandboxd import failpoints
from sandboxd.errors import HostFull
from sandboxd.mirror.live import Mirror, Mirrors

_log = structlog.get_logger()

_AT_ONCE_MIRRORS = 8
_AT_ONCE_FILES = 1000
_PAUSE_FACTOR = 10.0  # a manifest costs at most a tenth of a core, however long it is
_AFTER_FAILURE_S = 1.0


async def flush(mirrors: Mirrors, touched: Iterable[Mirror]) -> None:
    """Write the manifests of these mirrors now, if there are few and they are short; else they follow."""
    due = [mirror for mirror in touched if mirror.sandbox_id in mirrors.dirty]
    if len(due) > _AT_ONCE_MIRRORS or any(len(mirror.shown) > _AT_ONCE_FILES for mirror in due):
        return
    for mirror in due:
        try:
            await mirrors.write_manifest(mirror)
        except HostFull:
            return  # they are still marked: the writer tries again


async def write_manifests(mirrors: Mirrors) -> None:
    """Write every manifest that is due, for ever."""
    while True:
        now = time.monotonic()
        due = [mirror for mirror in mirrors.dirty.values() if mirror.manifest_after <= now]
        for mirror in due:
            await _write(mirrors, mirror)
        if due:
            continue
        mirrors.manifest_due = anyio.Event()
        next_s = min((mirror.manifest_after - now for mirror in mirrors.dirty.values()), default=None)
        with anyio.move_on_after(next_s):
            await mirrors.manifest_due.wait()


async def _write(mirrors: Mirrors, mirror: Mirror) -> None:
    started = time.monotonic()
    try:
        await mirrors.write_manifest(mirror)
        await failpoints.reach("refresh.manifest")
    except (HostFull, OSError) as error:
        mirror.manifest_after = started + _AFTER_FAILURE_S
        _log.warning("cannot write a manifest yet", sandbox=mirror.sandbox_id, error=str(error))
        return
    if len(mirror.shown) > _AT_ONCE_FILES:
        now = time.monotonic()
        mirror.manifest_after = now + (now - started) * _PAUSE_FACTOR
