"""Promises: small checks named as sentences, each run on its own backend and with a timeout.

Independent of stores. A promise is an async function; a failure quotes its name.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import anyio

from memo.conformance import BrokenPromise, Factory, made

__all__ = [
    "BrokenPromise",
    "Factory",
    "Promise",
    "expect",
    "expect_equal",
    "fresh",
    "innermost",
    "keep",
    "keep_one",
    "made",
    "sentence",
    "together",
]

HANG_GUARD_S = 60

Promise = Callable[[Any], Awaitable[None]]


def sentence(promise: Promise) -> str:
    return promise.__name__.replace("_", " ")


async def keep(make: Factory, promises: Iterable[Promise]) -> None:
    for promise in promises:
        async with made(make) as backend:
            await keep_one(promise, backend)


async def keep_one(promise: Promise, backend: Any) -> None:
    try:
        with anyio.fail_after(HANG_GUARD_S):
            await promise(backend)
    except Exception as error:
        seen = innermost(error)
        raise BrokenPromise(sentence(promise), str(seen) or type(seen).__name__) from error


def innermost(error: BaseException) -> BaseException:
    """Return the first error that a task group wrapped."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def expect(is_kept: bool, seen: str) -> None:
    if not is_kept:
        raise AssertionError(seen)


def expect_equal(seen: object, expected: object, what: str) -> None:
    expect(seen == expected, f"{what} is {_short(seen)}, expected {_short(expected)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:199] + "…"


def fresh(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


async def together(count: int, work: Callable[[int], Awaitable[object]]) -> None:
    """Run `work(0)` to `work(count - 1)` concurrently."""

    async def one(number: int) -> None:
        await work(number)

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(one, number)
