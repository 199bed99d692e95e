"""The base of every wrapper: a provider around a provider, with exactly the methods of the inner one.

A capability that the inner provider lacks is missing in the wrapper too, so a wrapper of a read-only provider is
read-only. Wrappers intercept the verbs in the table below; every other attribute, such as the change feed, is passed
through.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any, Final, Literal

from memo.documents import Author
from memo.provider import capabilities_of

Content = Literal["document", "artifact", "messages"]


@dataclass(frozen=True, slots=True)
class Verb:
    """`key` and `content` are positions of parameters. A verb that `calls_back` runs the caller's own code."""

    name: str
    parameters: tuple[str, ...]
    writes: bool = False
    key: tuple[int, ...] = ()
    content: int | None = None
    noun: Content = "document"
    calls_back: bool = False


def _verbs() -> list[Verb]:
    text = ("tenant", "owner", "scope", "name", "content")
    artifact = ("session_ref", "tool_call_id", "content")
    session = ("tenant", "session", "messages")
    document, kept = ("key", "content"), ("key", "content")
    return [
        Verb("read_memory_document", text[:4], key=(0, 1, 2, 3)),
        Verb("write_memory_document", text, True, (0, 1, 2, 3), 4),
        Verb("append_memory_document", text, True, (0, 1, 2, 3), 4),
        Verb("read_tool_result_artifact", artifact[:2], key=(0, 1)),
        Verb("write_tool_result_artifact", artifact, True, (0, 1), 2, "artifact"),
        Verb("list_tool_result_artifact_ids", artifact[:1], key=(0,)),
        Verb("read_document", ("key", "revision"), key=(0,)),
        Verb("write_document", document, True, (0,), 1),
        Verb("append_document", document, True, (0,), 1),
        Verb("find_request", ("key", "request"), key=(0,)),
        Verb("delete_document", ("key",), True, (0,)),
        Verb("move_document", ("key", "to"), True, (0,)),
        Verb("list_documents", ("tenant", "owner", "scope"), key=(0, 1, 2)),
        Verb("document_history", ("key", "limit"), key=(0,)),
        Verb("diff_document", ("key", "before", "after"), key=(0,)),
        Verb("restore_document", ("key", "revision"), True, (0,)),
        Verb("redact_document", ("key", "revision"), True, (0,)),
        Verb("write_artifact", kept, True, (0,), 1, "artifact"),
        Verb("read_artifacts", ("session", "tool_calls"), key=(0,)),
        Verb("read_artifact_range", ("key", "start", "length"), key=(0,)),
        Verb("list_artifacts", ("session",), key=(0,)),
        Verb("list_memory", ("session", "user"), key=(0, 1)),
        Verb("read_memory", ("keys",)),
        Verb("last_change", ()),
        Verb("get_or_create", ("tenant", "user", "agent", "session"), True, (0, 1, 3)),
        Verb("get_session", session[:2], key=(0, 1)),
        Verb("load_messages", ("tenant", "session", "limit"), key=(0, 1)),
        Verb("load_messages_with_budget", ("tenant", "session", "token_budget"), key=(0, 1)),
        Verb("load_all_messages", session[:2], key=(0, 1)),
        Verb("load_full_history", session[:2], key=(0, 1)),
        Verb("append_messages", session, True, (0, 1), 2, "messages"),
        Verb("record_turn", ("tenant", "session", "usage"), True, (0, 1)),
        Verb("append_turn", (*session, "usage"), True, (0, 1), 2, "messages"),
        Verb("compact_if_needed", ("tenant", "session", "summarize"), True, (0, 1), calls_back=True),
        Verb("list_sessions", ("tenant",), key=(0,)),
        Verb("list_sessions_by_user", ("tenant", "user"), key=(0, 1)),
        Verb("list_users", ()),
        Verb("build_memory_index", ("tenant", "user", "session"), key=(0, 1, 2)),
        Verb("load_trace_envelopes", session[:2], key=(0, 1)),
        Verb("load_orchestration_state", session[:2], key=(0, 1)),
        Verb("load_orchestration_events", session[:2], key=(0, 1)),
    ]


VERBS: Final[Mapping[str, Verb]] = {verb.name: verb for verb in _verbs()}


@dataclass(frozen=True, slots=True)
class Call:
    """One call through a wrapper. `proceed` makes it, and may be called again."""

    verb: Verb
    method: Callable[..., Awaitable[Any]]
    args: Sequence[Any]
    named: Mapping[str, Any]

    async def proceed(self) -> Any:
        return await self.method(*self.args, **self.named)

    @property
    def key(self) -> str:
        """The key of the call, for messages and logs."""
        parts = (self.argument(position) for position in self.verb.key)
        return "/".join(str(part) for part in parts if part is not None)

    @property
    def content(self) -> Any:
        return None if self.verb.content is None else self.argument(self.verb.content)

    @property
    def is_safe_to_repeat(self) -> bool:
        """True for a read, and for a write with a request id, by which the store recognises a retry."""
        if not self.verb.writes:
            return True
        author = self.named.get("author")
        return (isinstance(author, Author) and author.request is not None) or self.named.get("request") is not None

    def argument(self, position: int) -> Any:
        if position < len(self.args):
            return self.args[position]
        return self.named.get(self.verb.parameters[position])


class Wrapper(ABC):
    def __init__(self, inner: object) -> None:
        capabilities_of(inner)  # refuses a non-provider here, not at its first use
        self._inner = inner

    @abstractmethod
    async def _pass(self, call: Call) -> Any:
        """Make the call, with this wrapper's behaviour around it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Python looks up special methods on the class, never here
            raise AttributeError(name)
        found = getattr(self._inner, name)
        verb = VERBS.get(name)
        if verb is None:
            return found
        # With the signature of the inner method, which tells callers how the store takes its arguments.
        return update_wrapper(partial(self._run, verb, found), found)

    async def _run(self, verb: Verb, method: Callable[..., Awaitable[Any]], /, *args: Any, **named: Any) -> Any:
        return await self._pass(Call(verb, method, args, named))
