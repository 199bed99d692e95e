"""ManifestWriter: writes manifests soon after the files they describe, at a bounded cost.

The mirrors own the files. A manifest that cannot be written now is retried.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import anyio
import structlog

from sandboxd import failpoints
from sandboxd.errors import HostFull
from sandboxd.memory.mirror import Mirror, Mirrors

_log = structlog.get_logger()

_INLINE_MIRRORS = 8
_INLINE_FILES = 1000
_PAUSE_FACTOR = 10.0  # writing one manifest takes at most a tenth of a core, however long it is
_AFTER_FAILURE_S = 1.0


class ManifestWriter:
    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors

    async def flush(self, touched: Iterable[Mirror]) -> None:
        """Write the manifests of these mirrors now if they are few and short; otherwise `run` writes them."""
        due = [mirror for mirror in touched if mirror.sandbox_id in self._mirrors.dirty]
        if len(due) > _INLINE_MIRRORS or any(len(mirror.shown) > _INLINE_FILES for mirror in due):
            return
        for mirror in due:
            try:
                await self._mirrors.write_manifest(mirror)
            except HostFull:
                return  # still marked, so `run` retries

    async def run(self) -> None:
        """Write every manifest that is due, for ever."""
        mirrors = self._mirrors
        while True:
            now = time.monotonic()
            due = [mirror for mirror in mirrors.dirty.values() if mirror.manifest_after <= now]
            for mirror in due:
                await self._write(mirror)
            if due:
                continue
            mirrors.manifest_due = anyio.Event()
            next_s = min((mirror.manifest_after - now for mirror in mirrors.dirty.values()), default=None)
            with anyio.move_on_after(next_s):
                await mirrors.manifest_due.wait()

    async def _write(self, mirror: Mirror) -> None:
        started = time.monotonic()
        try:
            await self._mirrors.write_manifest(mirror)
            await failpoints.reach("refresh.manifest")
        except (HostFull, OSError) as error:
            mirror.manifest_after = started + _AFTER_FAILURE_S
            _log.warning("cannot write a manifest yet", sandbox=mirror.sandbox_id, error=str(error))
            return
        if len(mirror.shown) > _INLINE_FILES:
            now = time.monotonic()
            mirror.manifest_after = now + (now - started) * _PAUSE_FACTOR
