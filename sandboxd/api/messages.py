"""Messages of a session: append, load, turns, compaction of the log and of tool results.

Messages go to the store directly; what compaction writes to memory reaches the mirrors like any other change.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from memo.compaction import CompactionOptions
from memo.documents import ArtifactKey
from memo.errors import Absent
from memo.ids import SessionRef
from memo.messages import Message
from memo.outline import outline
from memo.sessions import Usage
from memo.tool_results import compact_tool_results
from sandboxd.api.answers import json_answer
from sandboxd.api.budget import allotment
from sandboxd.api.memory import (
    ask_store,
    can,
    foreign_list,
    memory_of,
    request_of,
    require_session,
    takes_requests,
)
from sandboxd.api.once import BEGUN
from sandboxd.api.pieces import list_answer
from sandboxd.api.requests import (
    MAX_JSON_BYTES,
    MAX_STDIN_JSON_BYTES,
    read_json_objects,
    read_optional_json,
    read_query,
    session_ref,
)
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.api.sessions import introduce_session
from sandboxd.errors import NotFound
from sandboxd.models.message import (
    Appended,
    Compaction,
    CompactionBody,
    MessageList,
    MessagesBody,
    MessagesQuery,
    ShortenedMessages,
    ToolResultsBody,
    TurnBody,
)


async def append_messages(services: Services, request: Request) -> Response:
    memory_of(services)
    ref = session_ref(request)
    body = await read_json_objects(request, MessagesBody, MAX_STDIN_JSON_BYTES)
    request.scope[BEGUN] = True
    named = _request(services, request, "append_messages", body)
    await _write(services, ref, "append_messages", body.messages, **named)
    _announce(services, ref, "appended", count=len(body.messages))
    return json_answer(Appended(appended=len(body.messages)))


async def append_turn(services: Services, request: Request) -> Response:
    memory_of(services)
    ref = session_ref(request)
    body = await read_json_objects(request, TurnBody, MAX_STDIN_JSON_BYTES)
    usage = Usage.parse(body.usage)
    request.scope[BEGUN] = True
    if can(services, "append_turn"):
        named = _request(services, request, "append_turn", body)
        await _write(services, ref, "append_turn", body.messages, usage, **named)
    else:
        await _write(services, ref, "append_messages", body.messages)
        await _write(services, ref, "record_turn", usage)
    used = {f"{name}_tokens": count for name, count in asdict(usage).items()}
    _announce(services, ref, "turn", count=len(body.messages), **used)
    compacted = services.compactor is not None and await services.compactor.after_turn(ref)
    if compacted:
        _announce(services, ref, "compacted")
    return json_answer(Appended(appended=len(body.messages), compacted=compacted))


async def load_messages(services: Services, request: Request) -> Response:
    memory_of(services)
    ref = session_ref(request)
    query = read_query(request, MessagesQuery)
    verb, args = _how_to_load(query)
    found = await ask_store(services, verb, ref.tenant, ref.session, *args)
    if not found:
        await require_session(services, ref)
    return await foreign_list(request, "a list of messages", lambda: _newest(found, query.limit))


async def compact(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    ref = session_ref(request)
    body = await read_optional_json(request, CompactionBody)
    archived = 0

    def summarize(messages: list[Message]) -> str:
        nonlocal archived
        archived = len(messages)
        return body.summary if body.summary is not None else outline(messages)

    request.scope[BEGUN] = True
    compacted = await memory.compact(
        ref,
        summarize,
        CompactionOptions(
            body.trigger_tokens, body.compact_fraction, body.min_messages, body.force, body.workspace_snapshot
        ),
    )
    if not compacted:
        await require_session(services, ref)
        return json_answer(Compaction(compacted=False, archived=0))
    _announce(services, ref, "compacted", count=archived)
    return json_answer(Compaction(compacted=True, archived=archived))


async def compact_results(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    ref = session_ref(request)
    body = await read_json_objects(request, ToolResultsBody, MAX_STDIN_JSON_BYTES)
    artifacts: list[str] = []

    async def keep(artifact: str, content: str) -> None:
        await memory.write_artifact(ArtifactKey.of(ref, artifact), content)
        artifacts.append(artifact)

    request.scope[BEGUN] = True
    items = await compact_tool_results(
        body.messages,
        keep,
        max_tokens=body.max_tokens,
        keep_recent=body.keep_recent,
        recent_max_tokens=body.recent_max_tokens,
    )
    return await list_answer(items, allotment(request), artifacts=artifacts)


async def _write(services: Services, ref: SessionRef, verb: str, *args: Any, **named: Any) -> None:
    """Write to the session; create it in the store first if it only has a sandbox so far."""
    try:
        await ask_store(services, verb, ref.tenant, ref.session, *args, writes=True, **named)
    except Absent as absent:
        try:
            view = services.manager.get(ref)
        except NotFound:
            raise absent from None
        await introduce_session(services, ref, view.user, view.agent)
        await ask_store(services, verb, ref.tenant, ref.session, *args, writes=True, **named)


def _announce(services: Services, ref: SessionRef, what: str, **counts: int) -> None:
    services.manager.events.publish("messages", what=what, tenant=ref.tenant, session=ref.session, **counts)


def _request(services: Services, request: Request, verb: str, body: MessagesBody) -> dict[str, str]:
    """Return the Idempotency-Key as an argument for a store that recognises retries; nothing for other stores."""
    if not takes_requests(services, verb):
        return {}
    found = request_of(request, verb, body.model_dump_json().encode())
    return {} if found is None else {"request": found}


def _newest(messages: list[Message], limit: int | None) -> list[Message]:
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise TypeError("a message is a JSON object")
    return messages if limit is None else messages[max(0, len(messages) - limit) :]


def _how_to_load(query: MessagesQuery) -> tuple[str, tuple[int, ...]]:
    if query.full:
        return "load_full_history", ()
    if query.budget is not None:
        return "load_messages_with_budget", (query.budget,)
    if query.limit is not None:
        return "load_messages", (query.limit,)
    return "load_all_messages", ()


def _appends_once(services: Services) -> bool:
    return takes_requests(services, "append_messages")


def _takes_turns_once(services: Services) -> bool:
    return takes_requests(services, "append_turn")


ENDPOINTS = (
    Endpoint(
        "POST",
        f"{SESSION}/messages",
        append_messages,
        "session",
        Access.WRITE,
        "Append messages: all of them or none",
        body_limit=MAX_STDIN_JSON_BYTES,
        body=MessagesBody,
        answers={200: Appended},
        repeatable=_appends_once,
    ),
    Endpoint(
        "GET",
        f"{SESSION}/messages",
        load_messages,
        "session",
        Access.READ,
        "Return the messages of the session, oldest first",
        query=MessagesQuery,
        answers={200: MessageList},
    ),
    Endpoint(
        "POST",
        f"{SESSION}/turns",
        append_turn,
        "session",
        Access.WRITE,
        "Append the messages of a turn and add its usage",
        body_limit=MAX_STDIN_JSON_BYTES,
        body=TurnBody,
        answers={200: Appended},
        repeatable=_takes_turns_once,
    ),
    Endpoint(
        "POST",
        f"{SESSION}/compaction",
        compact,
        "session",
        Access.WRITE,
        "Archive the oldest messages, if due, and put a summary in their place and in NOTES.md",
        body_limit=MAX_JSON_BYTES,
        body=CompactionBody,
        answers={200: Compaction},
        repeatable=False,
    ),
    Endpoint(
        "POST",
        f"{SESSION}/tool-results",
        compact_results,
        "session",
        Access.WRITE,
        "Store the long tool results among these messages as artifacts, and return the messages with stubs",
        body_limit=MAX_STDIN_JSON_BYTES,
        body=ToolResultsBody,
        answers={200: ShortenedMessages},
    ),
)
