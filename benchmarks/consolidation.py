"""The cost of idle consolidation: a scan for due users, from 100 to 10,000 users of 20 sessions each.

`python -m benchmarks.consolidation [--rounds N]` prints tables and writes benchmarks/results/consolidation.json. The
baseline works without an index: it lists the users, then the sessions of each. It also measures what maintaining the
index adds to an append.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio

from benchmarks.measure import Act, Figure, Promise, interleave, show, show_promises, write
from memo import SQLiteStore
from memo.consolidation import Standing, UserMemoryConsolidationService
from memo.messages import encode_object
from memo.stores.options import utc_now

SIZES = (100, 1_000, 10_000)
SESSIONS = 20
CHANGED = 100


def fill(path: Path, users: int) -> None:
    """Create users whose sessions were all settled a while ago, without waiting for 20 commits each."""
    db = sqlite3.connect(path)
    standing = encode_object("standing", Standing(1, utc_now(), "written", 1).encode(), 10_000)
    names = [(f"tenant{n % 10}", f"user{n}") for n in range(users)]
    db.executemany(
        "INSERT INTO sessions (tenant, session, user_id, agent, created_at, updated_at, next_position)"
        " VALUES (?, ?, ?, 'a', 1, 1, 11)",
        [(tenant, f"{user}-{s}", user) for tenant, user in names for s in range(SESSIONS)],
    )
    db.executemany("INSERT INTO consolidations VALUES (?, ?, ?, '{}')", [(*name, standing) for name in names])
    db.commit()
    db.close()


def change(path: Path, users: int) -> None:
    db = sqlite3.connect(path)
    db.execute(
        "INSERT INTO pending_sessions SELECT tenant, user_id, session, 10, updated_at FROM sessions"
        " WHERE session LIKE '%-0' LIMIT ?",
        (users,),
    )
    db.commit()
    db.close()


def scan(store: SQLiteStore) -> Act:
    """Run the whole scan: the query, and the decision for each user found. All users count as busy, so none runs."""
    service = UserMemoryConsolidationService(store, is_busy=lambda _: True)
    return service.run_once


def one_by_one(store: SQLiteStore) -> Act:
    async def act() -> None:
        for user in await store.list_users():
            await store.list_sessions_by_user(user.tenant, user.user)

    return act


def append(store: SQLiteStore) -> Callable[[], Awaitable[Any]]:
    message = [{"role": "user", "content": "a message of a usual length, which is not very long " * 4}]
    return lambda: store.append_messages("acme", "s1", message)


async def measure_scans(rounds: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncExitStack() as stack:
            acts: dict[str, Act] = {}
            for users in SIZES:
                for changed in (0, CHANGED):
                    path = Path(directory) / f"{users}-{changed}.db"
                    store = await stack.enter_async_context(SQLiteStore(path))
                    fill(path, users)
                    change(path, changed)
                    label = "nothing changed" if not changed else f"{changed} changed"
                    acts[f"{users} users, {label}"] = scan(store)
                    if not changed:
                        acts[f"{users} users, one by one"] = one_by_one(store)
            rarely = frozenset(name for name in acts if name.endswith("one by one"))
            return await interleave(acts, rounds, rarely=rarely)


async def measure_appends(rounds: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        async with AsyncExitStack() as stack:
            acts: dict[str, Act] = {}
            for name in ("append without the index", "append"):
                path = Path(directory) / f"{name}.db"
                store = await stack.enter_async_context(SQLiteStore(path))
                await store.get_or_create("acme", "ann", "a", "s1")
                if name != "append":
                    db = sqlite3.connect(path)
                    db.execute("DROP TRIGGER sessions_become_pending")
                    db.execute("DROP TRIGGER pending_sessions_stay_active")
                    db.commit()
                    db.close()
                acts[name] = append(store)
            return await interleave(acts, rounds * 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args().rounds
    scans = anyio.run(measure_scans, rounds, backend_options={"use_uvloop": True})
    appends = anyio.run(measure_appends, rounds, backend_options={"use_uvloop": True})
    show(f"a scan, {SESSIONS} sessions a user", scans, f"{SIZES[0]} users, nothing changed")
    show("an append of one message", appends, "append without the index")
    p50 = {figure.name: figure.p50_ms for figure in [*scans, *appends]}
    growth = p50[f"{SIZES[-1]} users, nothing changed"] / p50[f"{SIZES[0]} users, nothing changed"]
    cost = p50["append"] / p50["append without the index"]
    promises = [
        Promise("a scan costs the same for 100 times the users", "≤ 2 ×", f"{growth:.2f} ×", growth <= 2),
        Promise("the index is cheap to keep", "≤ 1.2 ×", f"{cost:.2f} ×", cost <= 1.2),
    ]
    show_promises(promises)
    print(write("consolidation", {"scans": scans, "appends": appends}, promises))


if __name__ == "__main__":
    main()
