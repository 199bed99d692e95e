"""Repeatedly write through turns, kill the writer, and check what remains.

Run as a program: `flush_writer KIND DIRECTORY ROUNDS`. It forks a writer for every round, so that imports run only
once, kills it with SIGKILL at a random moment of its flushes, and forks a reader. Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import anyio

from memo.stores.filesystem import records as filesystem_records
from memo.turn import TurnRunner, store_callbacks
from memo.turn.conformance import sample
from tests.memo.turn.stores import opened

RECORDS = 12
LONGEST_WAIT_S = 0.004


async def write(kind: str, path: Path, pipe: int, number: int) -> None:
    """Write one number to all records in each turn, and delete and restore one of them."""
    async with opened(kind, path) as store:
        callbacks = store_callbacks(store, upsert=True)  # the first turn of a round may mutate what no turn has stored
        while True:
            number += 1
            turns = TurnRunner(executor_callback=executor_of(pipe, number), **callbacks)
            result = await turns.run()
            if result.error is not None:
                raise result.error
            os.write(pipe, b"a%d\n" % number)


def executor_of(pipe: int, number: int) -> Any:
    async def executor(ctx: Any, helpers: Any) -> None:
        for index in range(RECORDS):
            verb = ctx.mutate_message if index % 2 else ctx.store_message
            await verb(sample("message", f"m{index}", str(number)))
        await ctx.store_memory(sample("memory", "y", str(number)))
        await ctx.delete_thought(f"t{number - 1}")
        await ctx.store_thought(sample("thought", f"t{number}", str(number)))
        os.write(pipe, b"f%d\n" % number)
        ctx.ack()

    return executor


async def read(kind: str, path: Path) -> list[int]:
    """Return the number that all records share, or everything found if they differ."""
    async with opened(kind, path) as store:
        callbacks = store_callbacks(store)
        messages = await callbacks["fetch_messages_callback"](None)
        memories = await callbacks["fetch_memories_callback"](None)
        thoughts = await callbacks["fetch_thoughts_callback"](None)
    if not messages and not memories and not thoughts:
        return [0]
    sizes = (len(messages), len(memories), len(thoughts))
    if sizes != (RECORDS, 1, 1):
        raise AssertionError(f"half a flush: {sizes}")
    return sorted({int(str(item.content)) for item in (*messages, *memories, *thoughts)})


def in_child(work: Any) -> tuple[int, int]:
    """Fork; return the pid and the pipe that the child writes to."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    os.close(reading)
    code = 1
    try:
        work(writing)
        code = 0
    finally:
        os._exit(code)


def one_round(kind: str, path: Path, number: int, source: random.Random) -> tuple[int, bool]:
    """Return the number that remains, and whether the kill hit a flush."""
    pid, pipe = in_child(lambda out: anyio.run(write, kind, path, out, number))
    told = b""
    for _ in range(source.randrange(1, 5)):
        told += os.read(pipe, 4096)
    time.sleep(source.random() * LONGEST_WAIT_S)  # the moment of the kill is under test
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(pipe, "rb") as rest:
        told += rest.read()
    lines = told.decode().split()
    acked = max((int(line[1:]) for line in lines if line[0] == "a"), default=number)
    began = max((int(line[1:]) for line in lines if line[0] == "f"), default=number)

    def look(out: int) -> None:
        os.write(out, json.dumps(anyio.run(read, kind, path)).encode())

    reader, answer = in_child(look)
    with os.fdopen(answer, "rb") as file:
        found = file.read()
    _, status = os.waitpid(reader, 0)
    if status or len(json.loads(found)) != 1:
        raise AssertionError(f"{acked} acknowledged and {began} begun, but found {found!r}")
    (left,) = json.loads(found)
    if not acked <= left <= began:
        raise AssertionError(f"{acked} acknowledged and {began} begun, but found {left}")
    return left, began > acked


def main(kind: str, path: str, rounds: str) -> None:
    filesystem_records.COMPACT_ABOVE_BYTES = 16_384  # so that kills hit compactions of a log too
    source = random.Random(11)
    number = hits = 0
    for _ in range(int(rounds)):
        number, is_hit = one_round(kind, Path(path), number, source)
        hits += is_hit
    print(json.dumps({"rounds": int(rounds), "in_flush": hits, "turns": number}))


if __name__ == "__main__":
    main(*sys.argv[1:])
