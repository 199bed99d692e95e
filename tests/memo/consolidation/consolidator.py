"""A process that consolidates one SQLite file or directory. The tests start several and kill some.

    consolidator.py PATH once          run the users that are due, once
    consolidator.py PATH watch         run users as they become due, until terminated
    consolidator.py PATH hang USER     like watch, but never finish summarising that user

It prints `ready`, waits for a line on stdin, and prints every result and where it hangs.
"""

from __future__ import annotations

import json
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio

from memo import SQLiteStore
from memo.consolidation import (
    Budget,
    ConsolidationSettings,
    EmbeddedSummariser,
    Policy,
    Progress,
    UserMemoryConsolidationService,
)
from memo.consolidation.summarisers import SessionDraft
from memo.consolidation.transcript import Transcript
from memo.stores.filesystem import FilesystemStore

LEASE_S = 1.0
SETTINGS = ConsolidationSettings(policy=Policy(idle=timedelta(0)), lease_s=LEASE_S, scan_s=600)


class Hanging(EmbeddedSummariser):
    def __init__(self, user: str) -> None:
        self._session = f"{user}-1"

    async def summarise(self, transcript: Transcript, budget: Budget) -> SessionDraft:
        if transcript.session == self._session:
            tell({"hangs": self._session})
            await anyio.sleep_forever()
        return await super().summarise(transcript, budget)


def open_at(path: Path) -> SQLiteStore | FilesystemStore:
    return SQLiteStore(path) if path.suffix == ".db" else FilesystemStore(path, watch=False)


def tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def observe(progress: Progress) -> None:
    if progress.result is not None:
        tell({"user": str(progress.result.user), "outcome": progress.result.outcome})


async def main(path: Path, mode: str, user: str) -> None:
    async with open_at(path) as store:
        summariser = Hanging(user) if mode == "hang" else EmbeddedSummariser()
        service = UserMemoryConsolidationService(store, summariser, settings=SETTINGS, observe=observe)
        tell({"ready": True})
        await anyio.to_thread.run_sync(sys.stdin.readline)
        if mode == "once":
            await service.run_once()
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.watch)
            with anyio.open_signal_receiver(signal.SIGTERM) as signals:
                async for _ in signals:
                    service.stop()
                    return


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2], "".join(sys.argv[3:]))
