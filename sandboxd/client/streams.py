"""What the async and the synchronous client write differently, in addition to the transport."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from inspect import isawaitable
from typing import Any, TypeVar

T = TypeVar("T")

AsyncStream = AsyncGenerator[T, None]
Stream = Generator[T, None, None]

AsyncCallback = Callable[[T], Awaitable[Any] | Any]
Callback = Callable[[T], Any]


async def async_notify(callback: AsyncCallback[T] | None, item: T) -> None:
    """Call the caller's function, and await it if it is async."""
    if callback is not None:
        outcome = callback(item)
        if isawaitable(outcome):
            await outcome


def notify(callback: Callback[T] | None, item: T) -> None:
    if callback is not None:
        callback(item)
