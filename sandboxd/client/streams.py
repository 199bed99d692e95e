"""What the async and the synchronous client write differently, in addition to the transport."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

AsyncStream = AsyncGenerator[T, None]
Stream = Generator[T, None, None]

AsyncCallback = Callable[[T], Awaitable[Any] | Any]
Callback = Callable[[T], Any]


def async_make_lock() -> asyncio.Lock:
    import asyncio  # not loaded by the command line

    return asyncio.Lock()


def make_lock() -> threading.Lock:
    return threading.Lock()


async def async_notify(callback: AsyncCallback[T] | None, item: T) -> None:
    """Call the caller's function, and await it if it is async."""
    if callback is not None:
        outcome = callback(item)
        if isawaitable(outcome):
            await outcome


def notify(callback: Callback[T] | None, item: T) -> None:
    if callback is not None:
        callback(item)
