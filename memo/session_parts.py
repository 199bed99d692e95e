"""What an app makes for each session: a part that is made once, and writes that never raise.

Owns the cache of the parts, and counts and logs the writes that failed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from memo.errors import MemoError, Unsupported
from memo.ids import SessionRef

_log = logging.getLogger("memo.app")


class OncePerSession:
    """A factory that is called at most once for each session."""

    def __init__(self, noun: str, make: Callable[[SessionRef], Any] | None) -> None:
        self._noun = noun
        self._make = make
        self._made: dict[SessionRef, Any] = {}

    @property
    def is_known(self) -> bool:
        return self._make is not None

    def of(self, ref: SessionRef) -> Any:
        if self._make is None:
            raise Unsupported(f"cannot store {self._noun}: neither this app nor its store has a factory")
        if ref not in self._made:
            self._made[ref] = self._make(ref)
        return self._made[ref]

    def forget(self, ref: SessionRef) -> None:
        self._made.pop(ref, None)


class QuietWrites:
    """A proxy whose writes never raise: failures are logged and counted."""

    def __init__(self, inner: Any, writes: frozenset[str], noun: str, ref: SessionRef, lost: dict[str, int]) -> None:
        self._inner = inner
        self._writes = writes
        self._noun = noun
        self._ref = ref
        self._lost = lost

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return partial(self._write, found) if name in self._writes else found

    async def _write(self, method: Callable[..., Awaitable[None]], *args: Any, **named: Any) -> None:
        await quietly(partial(method, *args, **named), self._noun, self._ref, self._lost)


async def quietly(write: Callable[[], Awaitable[object]], noun: str, ref: SessionRef, lost: dict[str, int]) -> None:
    try:
        await write()
    except Exception as error:  # noqa: BLE001  # the contract: no failure of a backend may stop an agent here
        lost[noun] += 1
        reason = (
            str(error) if isinstance(error, MemoError) else type(error).__name__
        )  # a third-party error message may contain memory
        _log.warning("cannot write %s of session %s (%d lost): %s", noun, ref, lost[noun], reason)
