"""What every conformance check is built on: the error it raises, and how it makes the backend under test.

Below the turn contract and `memo.testing`, so that both can offer checks. It does not depend on any backend.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

Factory = Callable[[], Any]


class BrokenPromise(AssertionError):
    """`promise` is the sentence that does not hold; the message adds what was seen."""

    def __init__(self, promise: str, seen: str) -> None:
        super().__init__(f"{promise}: {seen}")
        self.promise = promise


@asynccontextmanager
async def made(make: Factory) -> AsyncIterator[Any]:
    """Hold open what a factory returns: the backend, an awaitable of it, or an async context manager."""
    backend = make()
    if inspect.isawaitable(backend):
        backend = await backend
    if hasattr(backend, "__aenter__"):
        async with backend as opened:
            yield opened
        return
    try:
        yield backend
    finally:
        if callable(getattr(backend, "aclose", None)):
            await backend.aclose()
