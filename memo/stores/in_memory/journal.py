"""The logs and slots of one session, in memory.

Owned by an InMemoryStore, whose turns it takes; nothing survives the process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from memo.stores.journal import LogName, Slot, SlotName


class MemoryJournal:
    def __init__(self, turn: Callable[[], Awaitable[None]]) -> None:
        self._turn = turn
        self._logs: dict[tuple[LogName, str], list[str]] = {}
        self._slots: dict[tuple[SlotName, str], Slot] = {}

    async def append(self, log: LogName, agent: str, body: str) -> None:
        await self._turn()
        self._logs.setdefault((log, agent), []).append(body)

    async def load(self, log: LogName, agent: str) -> list[str]:
        await self._turn()
        return list(self._logs.get((log, agent), []))

    async def put(self, slot: SlotName, agent: str, body: str) -> None:
        await self._turn()
        self._slots[slot, agent] = Slot(body, len(self._logs.get(("event", ""), [])))

    async def get(self, slot: SlotName, agent: str) -> Slot | None:
        await self._turn()
        return self._slots.get((slot, agent))
