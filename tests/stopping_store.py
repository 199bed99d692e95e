"""A store that can be stopped from outside: while a file is there, every call fails as a database that is down does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import memo
from memo.errors import Unavailable

STOPPED = "SANDBOXD_TEST_STOPPED"
DATABASE = "SANDBOXD_TEST_DATABASE"


class StoppingStore:
    """Passes everything on to a real store, unless it is stopped."""

    def __init__(self, inner: Any, stopped: Path) -> None:
        self._inner = inner
        self._stopped = stopped

    async def __aenter__(self) -> StoppingStore:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> None:
        await self._inner.__aexit__(*details)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._guarded(found) if callable(found) and name != "changes" else found

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            if self._stopped.exists():
                raise Unavailable("cannot reach the store: it is stopped")
            return await call(*args, **kwargs)

        return guarded


def make() -> StoppingStore:
    return StoppingStore(memo.SQLiteStore(Path(os.environ[DATABASE])), Path(os.environ[STOPPED]))
