"""Profiles: the agents of an app. Each is a function of the program that answers one turn with its own model.

    async def answer(turn: AgentTurn) -> AgentReply: ...

    create_agent_app(session_store=store, profiles=[Profile("default", answer)])

The function gets the conversation and returns the reply, or is an async generator that yields events and then the
reply. Nothing here reads or writes a store.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memo.errors import Absent, InvalidContent
from memo.ids import SessionRef
from memo.messages import Message
from memo.sessions import Usage

Event = dict[str, Any]
"""What an agent reports while it works: a JSON object with a `type`, such as `message_update`."""
WriteArtifact = Callable[[str, str], Awaitable[None]]
"""Stores the full text of a tool result, by the id of its call, and shows it in the session's sandbox."""
ReadinessCheck = Callable[[], Awaitable[Any]]
"""Raises, or returns False or an object whose `status` is not `ok`, if the program is not ready."""


@dataclass(frozen=True, slots=True)
class ProfileContext:
    """Whose turn it is."""

    tenant_id: str
    user_id: str
    session_id: str
    agent_id: str
    write_tool_result_artifact: WriteArtifact

    @property
    def session_ref(self) -> SessionRef:
        return SessionRef.of(self.tenant_id, self.session_id)


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """What an agent answers. `messages` is the conversation within its budget; the user's message is the last."""

    context: ProfileContext
    message: str
    messages: list[Message]
    memory_index: Any = None
    """What `build_memory_index` returned: which documents the session has, and how to read them."""


@dataclass(frozen=True, slots=True)
class AgentReply:
    """The end of a turn. `messages` are the agent's own, tool calls and results included; by default one of `text`."""

    text: str
    messages: Sequence[Mapping[str, Any]] = ()
    usage: Usage | Mapping[str, Any] = field(default_factory=Usage)
    stop_reason: str = "end_turn"

    def all_messages(self) -> list[Mapping[str, Any]]:
        return list(self.messages) or [{"role": "assistant", "content": self.text}]


AnswerTurn = Callable[[AgentTurn], Awaitable[AgentReply | str] | AsyncIterator[Event | AgentReply]]


@dataclass(frozen=True, slots=True)
class MemoryContext:
    """How a profile uses memory. What is left out is done by the app and its store."""

    build_memory_index: Callable[[ProfileContext], Any] | None = None
    write_tool_result_artifact: Callable[[ProfileContext, str, str], Awaitable[None]] | None = None
    compact_messages: Callable[[list[Message], ProfileContext], Any] | None = None
    """Shortens the conversation for the model, such as with `compact_tool_results`. What is stored stays as it is."""


@dataclass(frozen=True, slots=True)
class Profile:
    id: str
    answer: AnswerTurn
    name: str = ""
    token_budget: int = 100_000
    """How many tokens of the conversation the agent gets."""
    memory: MemoryContext = field(default_factory=MemoryContext)


def find_profile(profiles: Sequence[Profile], wanted: str | None, default: str | None) -> Profile:
    """Return the wanted profile, else the default one, else the first."""
    if not profiles:
        raise Absent("cannot answer: this app has no profiles; pass profiles= to create_agent_app")
    chosen = wanted or default or profiles[0].id
    found = next((profile for profile in profiles if profile.id == chosen), None)
    if found is None:
        raise Absent(f"cannot find profile {chosen}")
    return found


async def events_of(profile: Profile, turn: AgentTurn) -> AsyncIterator[Event | AgentReply]:
    """Yield what the agent reports, and its reply at the end."""
    answer = profile.answer(turn)
    reply: AgentReply | None = None
    if isinstance(answer, AsyncIterator):
        async for reported in answer:
            if isinstance(reported, AgentReply):
                reply = reported
                break
            yield reported
    else:
        returned = await answer
        reply = AgentReply(returned) if isinstance(returned, str) else returned
    if not isinstance(reply, AgentReply):
        raise InvalidContent(f"cannot use the answer of profile {profile.id}: it ended without an AgentReply")
    yield reply


async def awaited(value: Any) -> Any:
    """Return the value, awaited if a function of the program returned an awaitable."""
    return await value if inspect.isawaitable(value) else value
