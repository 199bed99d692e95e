"""A store of another program: the methods of the storage guide and no others, with plain objects in camelCase.

It keeps everything in one JSON file, so that it outlives a process. The options of a compaction are one object.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

PLACE = "SANDBOXD_TEST_STORE_FILE"
WORD_CHARS = 4


class GuideStore:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.options: list[Any] = []
        """The options of each call to `compact_if_needed`."""

    async def get_or_create(self, tenant: str, user: str, agent: str, session: str | None = None) -> dict[str, str]:
        state, name = self._load(), session or str(uuid.uuid4())
        state["sessions"].setdefault(
            f"{tenant}:{name}",
            {"tenantId": tenant, "sessionId": name, "userId": user, "updatedAt": _now(), "messages": [], "turns": []},
        )
        self._keep(state)
        return {"sessionId": name}

    async def load_messages(self, tenant: str, session: str, limit: int | None = None) -> list[dict[str, Any]]:
        messages = await self.load_all_messages(tenant, session)
        return messages if limit is None else messages[max(len(messages) - limit, 0) :]

    async def load_messages_with_budget(
        self, tenant: str, session: str, token_budget: int = 100_000
    ) -> list[dict[str, Any]]:
        messages = await self.load_all_messages(tenant, session)
        while len(messages) > 1 and _tokens(messages) > token_budget:
            messages = messages[1:]
        return messages

    async def load_all_messages(self, tenant: str, session: str) -> list[dict[str, Any]]:
        found = self._load()["sessions"].get(f"{tenant}:{session}")
        return found["messages"] if found else []

    async def append_messages(self, tenant: str, session: str, messages: list[dict[str, Any]]) -> None:
        self._change(tenant, session, lambda found: found["messages"].extend(dict(message) for message in messages))

    async def record_turn(self, tenant: str, session: str, usage: Any) -> None:
        self._change(tenant, session, lambda found: found["turns"].append(str(usage)))

    async def compact_if_needed(self, tenant: str, session: str, summarize: Any, options: Any = None) -> bool:
        self.options.append(options)
        messages = await self.load_all_messages(tenant, session)
        given = options or {}
        if _tokens(messages) < given.get("triggerTokens", 80_000):
            return False
        cutoff = int(len(messages) * given.get("compactFraction", 0.5))
        summary = await summarize(messages[:cutoff])
        head = {"role": "user", "content": f"[Conversation summary]: {summary}"}
        self._change(tenant, session, lambda found: found.update(messages=[head, *messages[cutoff:]]))
        return True

    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        found: str | None = self._load()["documents"].get("/".join((tenant, owner, scope, name)))
        return found

    async def write_memory_document(self, tenant: str, owner: str, scope: str, name: str, content: str) -> None:
        state = self._load()
        state["documents"]["/".join((tenant, owner, scope, name))] = content
        self._keep(state)

    async def list_sessions_by_user(self, tenant: str, user: str) -> list[dict[str, Any]]:
        sessions = self._load()["sessions"].values()
        owned = [one for one in sessions if (one["tenantId"], one["userId"]) == (tenant, user)]
        return [{"sessionId": one["sessionId"], "updatedAt": one["updatedAt"]} for one in owned]

    def _change(self, tenant: str, session: str, change: Any) -> None:
        state = self._load()
        found = state["sessions"][f"{tenant}:{session}"]
        change(found)
        found["updatedAt"] = max(_now(), found["updatedAt"] + 1)
        self._keep(state)

    def _load(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {"sessions": {}, "documents": {}}
        return state

    def _keep(self, state: dict[str, Any]) -> None:
        draft = self._path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(state))
        draft.rename(self._path)


def _now() -> int:
    return time.time_ns() // 1_000_000


def _tokens(messages: list[dict[str, Any]]) -> int:
    return sum(len(json.dumps(message)) for message in messages) // WORD_CHARS


def make() -> GuideStore:
    return GuideStore(Path(os.environ[PLACE]))
