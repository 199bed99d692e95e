"""A store that can be stopped from outside: while a file exists, every call fails like one to a database that is down.

While the file says `hang`, every call hangs instead, and so does opening the store.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

import memo
from memo.errors import Unavailable
from memo.limits import StoreLimits
from memo.stores.options import StoreOptions

STOPPED = "SANDBOXD_TEST_STOPPED"
BEHIND = "SANDBOXD_TEST_BEHIND"
"""The URL of the real store."""
MOST_BYTES = "SANDBOXD_TEST_MOST_BYTES"
"""The size limit of a document in the real store, which its daemon does not know."""


class StoppingStore:
    """Passes everything on to a real store, unless it is stopped."""

    def __init__(self, inner: Any, stopped: Path) -> None:
        self._inner = inner
        self._stopped = stopped

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._guarded(found) if callable(found) and name != "changes" else found

    def session_trace_store(self, ref: Any) -> StoppingStore:
        return StoppingStore(self._inner.session_trace_store(ref), self._stopped)

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            await _hang_if_told(self._stopped)
            if self._stopped.exists():
                raise Unavailable("cannot reach the store: it is stopped")
            return await call(*args, **kwargs)

        return guarded


async def _hang_if_told(stopped: Path) -> None:
    if stopped.exists() and stopped.read_text() == "hang":
        await anyio.sleep_forever()


@asynccontextmanager
async def make() -> AsyncIterator[StoppingStore]:
    await _hang_if_told(Path(os.environ[STOPPED]))
    limits = StoreLimits(document_bytes=int(os.environ.get(MOST_BYTES) or StoreLimits().document_bytes))
    async with memo.open_store(os.environ[BEHIND], StoreOptions(limits=limits)) as inner:
        yield StoppingStore(inner, Path(os.environ[STOPPED]))
