"""Do queries get slower as a store grows? The same queries on stores of each size, interleaved.

Half of the rows are one long session, half are sessions of a hundred messages, ten to a user. A query for "any" session
or user picks a different one each time, so that one cached page cannot serve a million rows.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio

from benchmarks.measure import Act, Figure, Promise, interleave, show
from memo import InMemoryStore, SQLiteStore
from memo.stores import BaseStore
from memo.stores.filesystem import FilesystemStore

MESSAGE = "a message of a usual length, which is not very long " * 3
MESSAGES_EACH = 100
SESSIONS_EACH = 10
BUDGET = 4_000
BLOCK = 20
AT_ONCE = 64

Ask = Callable[[BaseStore, int], Awaitable[object]]

KINDS: dict[str, Callable[[Path], BaseStore]] = {
    "sqlite": SQLiteStore,
    "filesystem": partial(FilesystemStore, watch=False),
    "memory": lambda path: InMemoryStore(),
}
MOST_ELSEWHERE = 100_000  # the most that a directory or a process has to hold; a million rows is for the database

QUESTIONS: dict[str, Ask] = {
    "load_messages(limit=50), the long session": lambda s, rows: s.load_messages("bench", "long", 50),
    "load_messages(limit=50), any session": lambda s, rows: s.load_messages("bench", any_session(rows), 50),
    "budget, the long session": lambda s, rows: s.load_messages_with_budget("bench", "long", BUDGET),
    "budget, any session": lambda s, rows: s.load_messages_with_budget("bench", any_session(rows), BUDGET),
    "list_sessions_by_user": lambda s, rows: s.list_sessions_by_user("bench", any_user(rows)),
}


async def growth(directory: Path, rounds: int, sizes: list[int]) -> tuple[dict[str, list[Figure]], list[Promise]]:
    figures: dict[str, list[Figure]] = {}
    promises: list[Promise] = []
    async with AsyncExitStack() as stack:
        for kind, make in KINDS.items():
            stores: dict[int, BaseStore] = {}
            for rows in sizes:
                if kind == "sqlite" or rows <= MOST_ELSEWHERE:
                    stores[rows] = await stack.enter_async_context(make(directory / f"{kind}-{rows}"))
                    started = time.perf_counter()
                    await fill(stores[rows], rows)
                    print(f"{kind}: {rows:,} rows loaded in {time.perf_counter() - started:.1f} s")
            for question, ask in QUESTIONS.items() if stores else ():
                measured = await ask_each(ask, stores, rounds)
                figures[f"{kind}: {question}"] = measured
                first, last = measured[0], measured[-1]
                show(f"{kind}: {question}, {BLOCK} times", measured, first.name)
                ratio = last.ratio_to(first)
                if kind == "sqlite":
                    wanted = f"{last.name} ≤ 1.3 × {first.name}"
                    promises.append(Promise(question, wanted, f"{ratio:.2f} ×", ratio <= 1.3))
    return figures, promises


async def ask_each(ask: Ask, stores: dict[int, BaseStore], rounds: int) -> list[Figure]:
    acts: dict[str, Act] = {f"{rows:,} rows": partial(ask_often, ask, store, rows) for rows, store in stores.items()}
    return await interleave(acts, rounds)


async def ask_often(ask: Ask, store: BaseStore, rows: int) -> None:
    for _ in range(BLOCK):
        await ask(store, rows)


async def fill(store: BaseStore, rows: int) -> None:
    """Append through the public API, many at once: writes that wait together are committed together."""
    batch = [{"role": "user" if n % 2 else "assistant", "content": f"{n} {MESSAGE}"} for n in range(MESSAGES_EACH)]
    numbers = iter(range(rows // MESSAGES_EACH))
    await store.get_or_create("bench", "longwinded", "agent", "long")

    async def work() -> None:
        for number in numbers:
            session, user = f"s{number // 2}", f"u{number // 2 // SESSIONS_EACH}"
            if number % 2:
                session = "long"
            else:
                await store.get_or_create("bench", user, "agent", session)
            await store.append_messages("bench", session, batch)

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(work)


def any_session(rows: int) -> str:
    return f"s{random.randrange(rows // MESSAGES_EACH // 2)}"


def any_user(rows: int) -> str:
    return f"u{random.randrange(rows // MESSAGES_EACH // 2 // SESSIONS_EACH)}"
