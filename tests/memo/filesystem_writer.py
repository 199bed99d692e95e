"""A process that writes to one directory; the tests start several, and kill some.

    filesystem_writer.py PATH count NUMBER TURNS   append TURNS lines, and add TURNS to a counter by compare-and-swap
    filesystem_writer.py PATH die ROUNDS SEED      fork writers, kill each at a random moment, print what was
    acknowledged filesystem_writer.py PATH step VERB MOST       fork writers in copies PATH/VERB-N of PATH/VERB, each of
    which dies at its Nth change to the disk; print the N of the one that survived

A fork inherits all imports, so that hundreds of writers can die in seconds.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from memo.documents import ABSENT, ArtifactKey, Author, DocumentKey, DocumentName
from memo.errors import RevisionConflict
from memo.stores.filesystem import FilesystemStore, home

LINES = DocumentKey.of("acme", "s1", "session", "LINES.md")
COUNTER = DocumentKey.of("acme", "s1", "session", "COUNTER.md")
TEXT = DocumentKey.of("acme", "s1", "session", "TEXT.md")
PLAN = DocumentKey.of("acme", "s1", "session", "memories/projects/plan.md")
BATCH = 5


async def count(path: Path, number: int, turns: int) -> None:
    author = Author(f"writer-{number}")
    async with FilesystemStore(path) as store:
        for turn in range(turns):
            await store.append_document(LINES, f"{number}.{turn}\n", author=author)
            while True:
                document = await store.read_document(COUNTER)
                value, expected = (int(document.content), document.revision) if document else (0, ABSENT)
                try:
                    await store.write_document(COUNTER, str(value + 1), expected=expected, author=author)
                except RevisionConflict:
                    continue
                break


def summary_of(name: str) -> Callable[[object], str]:
    return lambda _: f"summary {name}"


async def write_until_killed(path: Path, round_: int, told: int) -> None:
    """Write documents, artifacts and batches of messages, and compact; print each after it was acknowledged."""
    async with FilesystemStore(path, watch=False) as store:
        tell(told, "open")
        turn = 0
        while True:
            name = f"{round_}.{turn}"
            text = f"{name} " * 2000
            document = await store.write_document(TEXT, text)
            tell(told, "document", document.revision, document.sha256)
            batch = [{"role": "user", "content": f"{name}.{n}"} for n in range(BATCH)]
            await store.append_turn("acme", "s1", batch, {"input": 1})
            tell(told, "batch", name)
            await store.write_tool_result_artifact("acme:s1", name, text)
            tell(told, "artifact", name)
            if await store.compact_if_needed("acme", "s1", summary_of(name), force=True):
                tell(told, "compaction", name)
            turn += 1


def tell(told: int, *what: object) -> None:
    os.write(told, json.dumps(what).encode() + b"\n")


def die(path: Path, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    for round_ in range(rounds):
        reading, telling = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            anyio.run(write_until_killed, path, round_, telling)
        os.close(telling)
        told = b""
        wanted = chance.randrange(1, 12)
        while told.count(b"\n") < wanted:  # even on a busy machine, some must die late
            told += os.read(reading, 65_536)
        deadline = time.monotonic() + chance.uniform(0, 0.01)
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


async def write(store: FilesystemStore) -> None:
    await store.write_document(TEXT, "new text")


async def append_turn(store: FilesystemStore) -> None:
    await store.append_turn("acme", "s1", [{"role": "user", "content": "new"}] * BATCH, {"input": 7})


async def compact(store: FilesystemStore) -> None:
    assert await store.compact_if_needed("acme", "s1", lambda _: "the summary", force=True)


async def write_artifact(store: FilesystemStore) -> None:
    await store.write_artifact(ArtifactKey.of("acme:s1", "call-1"), "new output")


async def redact(store: FilesystemStore) -> None:
    await store.redact_document(TEXT, 1)


async def make_session(store: FilesystemStore) -> None:
    await store.get_or_create("acme", "ann", "a", "s2")


async def create_below(store: FilesystemStore) -> None:
    await store.write_document(replace(PLAN, name=DocumentName("memories/new/x.md")), "new")


async def delete(store: FilesystemStore) -> None:
    await store.delete_document(PLAN)


async def move(store: FilesystemStore) -> None:
    await store.move_document(PLAN, DocumentName("archive/plan.md"))


async def move_below(store: FilesystemStore) -> None:
    await store.move_document(TEXT, DocumentName("TEXT.md/part.md"))


VERBS: dict[str, Callable[[FilesystemStore], Any]] = {
    verb.__name__: verb
    for verb in (
        write,
        append_turn,
        compact,
        write_artifact,
        redact,
        make_session,
        create_below,
        delete,
        move,
        move_below,
    )
}


async def prepare(store: FilesystemStore) -> None:
    """Prepare the state before the verb."""
    await store.get_or_create("acme", "ann", "a", "s1")
    await store.append_messages("acme", "s1", [{"role": "user", "content": str(n)} for n in range(10)])
    await store.write_document(TEXT, "secret")
    await store.write_document(TEXT, "old text")
    await store.write_document(PLAN, "the plan")
    await store.write_artifact(ArtifactKey.of("acme:s1", "call-1"), "old output")


def die_at(number: int) -> None:
    """Make this process kill itself at its Nth call that changes the disk."""
    left = number

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def maybe_die(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return maybe_die

    for name in ("fsync", "rename", "unlink", "mkdir", "rmdir", "write", "ftruncate"):
        setattr(os, name, counted(getattr(os, name)))
    home._rename = counted(home._rename)


async def run_verb(path: Path, verb: str, number: int) -> None:
    async with FilesystemStore(path, watch=False) as store:
        die_at(number)
        await VERBS[verb](store)
        os._exit(0)


def step(path: Path, verb: str, most: int) -> None:
    for number in range(1, most):
        copy = path / f"{verb}-{number}"
        shutil.copytree(path / verb, copy)
        child = os.fork()
        if child == 0:
            anyio.run(run_verb, copy, verb, number)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            sys.exit(f"the writer exited with {os.WEXITSTATUS(status)}") if status else print(number)
            return


if __name__ == "__main__":
    where, what = Path(sys.argv[1]), sys.argv[2]
    if what == "count":
        anyio.run(count, where, int(sys.argv[3]), int(sys.argv[4]))
    elif what == "die":
        die(where, int(sys.argv[3]), int(sys.argv[4]))
    else:
        step(where, sys.argv[3], int(sys.argv[4]))
