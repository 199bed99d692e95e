"""ContextVerbs: the typed methods of a context, seven to fetch, eighteen to change and two to store bytes.

Names and types only; a context implements the three operations behind them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from memo.errors import InvalidContent
from memo.primitives import Memory, Message, Retrievable, Thought, Tokenizable, ToolCall
from memo.spool import MediaReader, SpoolBytes, SpoolReader
from memo.turn.delta import Delta
from memo.turn.instructions import Replacement
from memo.turn.tools import Tool


class ContextVerbs(ABC):
    @abstractmethod
    async def _fetch(self, name: str) -> list[Any]: ...

    @abstractmethod
    async def _change(self, delta: Delta) -> None: ...

    @abstractmethod
    async def _store_bytes(self, name: str, id: str, data: Any) -> Any: ...

    async def fetch_messages(self) -> list[Message]:
        return await self._fetch("fetch_messages_callback")

    async def fetch_memories(self) -> list[Memory]:
        return await self._fetch("fetch_memories_callback")

    async def fetch_thoughts(self) -> list[Thought]:
        return await self._fetch("fetch_thoughts_callback")

    async def fetch_tool_calls(self) -> list[ToolCall]:
        return await self._fetch("fetch_tool_calls_callback")

    async def fetch_tools(self) -> list[Tool]:
        return await self._fetch("fetch_tools_callback")

    async def fetch_retrievables(self) -> list[Retrievable]:
        return await self._fetch("fetch_retrievables_callback")

    async def refresh_standing_instructions(self) -> list[Tokenizable]:
        return [_instruction(v) for v in await self._fetch("refresh_standing_instructions_callback")]

    async def store_message(self, message: Message) -> None:
        await self._change(Delta("store", "message", _checked(message, Message)))

    async def mutate_message(self, message: Message) -> None:
        await self._change(Delta("mutate", "message", _checked(message, Message)))

    async def delete_message(self, id: str) -> None:
        await self._change(Delta("delete", "message", _checked(id, str)))

    async def store_memory(self, memory: Memory) -> None:
        await self._change(Delta("store", "memory", _checked(memory, Memory)))

    async def mutate_memory(self, memory: Memory) -> None:
        await self._change(Delta("mutate", "memory", _checked(memory, Memory)))

    async def delete_memory(self, id: str) -> None:
        await self._change(Delta("delete", "memory", _checked(id, str)))

    async def store_thought(self, thought: Thought) -> None:
        await self._change(Delta("store", "thought", _checked(thought, Thought)))

    async def mutate_thought(self, thought: Thought) -> None:
        await self._change(Delta("mutate", "thought", _checked(thought, Thought)))

    async def delete_thought(self, id: str) -> None:
        await self._change(Delta("delete", "thought", _checked(id, str)))

    async def store_tool_call(self, tool_call: ToolCall) -> None:
        await self._change(Delta("store", "tool_call", _checked(tool_call, ToolCall)))

    async def mutate_tool_call(self, tool_call: ToolCall) -> None:
        await self._change(Delta("mutate", "tool_call", _checked(tool_call, ToolCall)))

    async def delete_tool_call(self, id: str) -> None:
        await self._change(Delta("delete", "tool_call", _checked(id, str)))

    async def store_retrievable(self, retrievable: Retrievable) -> None:
        await self._change(Delta("store", "retrievable", _checked(retrievable, Retrievable)))

    async def mutate_retrievable(self, retrievable: Retrievable) -> None:
        await self._change(Delta("mutate", "retrievable", _checked(retrievable, Retrievable)))

    async def delete_retrievable(self, id: str) -> None:
        await self._change(Delta("delete", "retrievable", _checked(id, str)))

    async def store_standing_instruction(self, value: str | Tokenizable) -> None:
        await self._change(Delta("store", "standing_instruction", _instruction(value)))

    async def mutate_standing_instruction(
        self, value: str | Tokenizable, *, replaces: str | Tokenizable | None = None
    ) -> None:
        """Put an instruction in the place of another, given by its text in `replaces`.

        Without `replaces` the instruction is looked up by its own text: one that exists stays as it is, and any other
        is unknown, which `store_callbacks` refuses.
        """
        changed = _instruction(value) if replaces is None else Replacement.of(value, replaces)
        await self._change(Delta("mutate", "standing_instruction", changed))

    async def delete_standing_instruction(self, value: str | Tokenizable) -> None:
        """Delete an instruction, given by its text: it has no id."""
        await self._change(Delta("delete", "standing_instruction", _instruction(value)))

    async def store_media_bytes(self, id: str, data: SpoolBytes) -> MediaReader:
        """Store bytes at once. They are unreferenced until a primitive that names them is stored."""
        reader: MediaReader = await self._store_bytes("store_media_bytes_callback", _checked(id, str), data)
        return reader

    async def store_retrievable_bytes(self, id: str, data: SpoolBytes) -> SpoolReader:
        """Store bytes at once. They are unreferenced until a primitive that names them is stored."""
        reader: SpoolReader = await self._store_bytes("store_retrievable_bytes_callback", _checked(id, str), data)
        return reader


def _checked(value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind) or value == "":
        raise InvalidContent(f"cannot make this change: expected {'an id' if kind is str else f'a {kind.__name__}'}")
    return value


def _instruction(value: str | Tokenizable) -> Tokenizable:
    return value if isinstance(value, Tokenizable) else Tokenizable(value)
