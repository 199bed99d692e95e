"""A session to talk in: what the promises of a session store say and hear.

Makes messages and reads them back; promises nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memo.messages import call_ids, result_id
from memo.testing.promises import expect, fresh


@dataclass(frozen=True, slots=True)
class Talk:
    """A session that exists."""

    store: Any
    tenant: str
    session: str

    async def append(self, *messages: dict[str, Any]) -> None:
        await self.store.append_messages(self.tenant, self.session, list(messages))

    async def all(self) -> list[dict[str, Any]]:
        return list(await self.store.load_all_messages(self.tenant, self.session))

    async def within(self, budget: int) -> list[dict[str, Any]]:
        return list(await self.store.load_messages_with_budget(self.tenant, self.session, budget))

    async def compact(self, summarize: Any, **options: Any) -> bool:
        return bool(await self.store.compact_if_needed(self.tenant, self.session, summarize, **options))


async def new_talk(store: Any) -> Talk:
    at = Talk(store, fresh("t"), fresh("s"))
    await store.get_or_create(at.tenant, "user-1", "agent-1", at.session)
    return at


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def call(name: str) -> dict[str, Any]:
    block = {"type": "toolCall", "id": name, "name": "Bash", "arguments": {"command": "true"}}
    return {"role": "assistant", "content": [{"type": "text", "text": "running"}, block]}


def result(name: str) -> dict[str, Any]:
    return {"role": "toolResult", "toolCallId": name, "content": [{"type": "text", "text": f"result of {name}"}]}


def expect_no_orphan(messages: list[dict[str, Any]], where: str) -> None:
    made_calls: set[str] = set()
    for message in messages:
        made_calls |= call_ids(message)
        answered = result_id(message)
        expect(answered is None or answered in made_calls, f"{where}, the result of {answered} has lost its call")
