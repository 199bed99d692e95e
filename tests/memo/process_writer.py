"""A process that writes to one SQLite file; the tests start several, and kill some.

    process_writer.py PATH count NUMBER TURNS    append TURNS lines, and add TURNS to a counter by compare-and-swap
    process_writer.py PATH die ROUNDS SEED       fork writers, kill each at a random moment, print what was acknowledged

A fork inherits all imports, so that hundreds of writers can die in seconds.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

import anyio

from memo import SQLiteStore
from memo.documents import Author, DocumentKey
from memo.errors import RevisionConflict

LINES = DocumentKey.of("acme", "s1", "session", "LINES.md")
COUNTER = DocumentKey.of("acme", "s1", "session", "COUNTER.md")
TEXT = DocumentKey.of("acme", "s1", "session", "TEXT.md")
BATCH = 5


async def count(path: Path, number: int, turns: int) -> None:
    author = Author(f"writer-{number}")
    async with SQLiteStore(path) as store:
        for turn in range(turns):
            await store.append_document(LINES, f"{number}.{turn}\n", author=author)
            while True:
                document = await store.read_document(COUNTER)
                value = int(document.content) if document else 0
                try:
                    await store.write_document(
                        COUNTER, str(value + 1), expected=document.revision if document else 0, author=author
                    )
                except RevisionConflict:
                    continue
                break


async def write_until_killed(path: Path, round_: int, told: int) -> None:
    """Write documents, artifacts and batches of messages; print each after it was acknowledged."""
    async with SQLiteStore(path) as store:
        turn = 0
        while True:
            name = f"{round_}.{turn}"
            text = f"{name} " * 2000
            document = await store.write_document(TEXT, text)
            os.write(told, json.dumps(["document", document.revision, document.sha256]).encode() + b"\n")
            await store.append_turn(
                "acme", "s1", [{"role": "user", "content": f"{name}.{n}"} for n in range(BATCH)], {"input": 1}
            )
            os.write(told, json.dumps(["batch", name]).encode() + b"\n")
            await store.write_tool_result_artifact("acme:s1", name, text)
            os.write(told, json.dumps(["artifact", name]).encode() + b"\n")
            turn += 1


def die(path: Path, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    for round_ in range(rounds):
        reading, telling = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            anyio.run(write_until_killed, path, round_, telling)
        os.close(telling)
        # One in four dies while it opens the store; the others a moment after their first acknowledgement.
        told = b"" if round_ % 4 == 0 else os.read(reading, 65_536)
        deadline = time.monotonic() + chance.uniform(0, 0.06)
        while (left := deadline - time.monotonic()) > 0:
            if select.select([reading], [], [], left)[0]:
                told += os.read(reading, 65_536)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while chunk := os.read(reading, 65_536):
            told += chunk
        os.close(reading)
        sys.stdout.write(told.decode())
    sys.stdout.flush()


if __name__ == "__main__":
    where, verb, first, second = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if verb == "count":
        anyio.run(count, where, first, second)
    else:
        die(where, first, second)
