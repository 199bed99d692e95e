"""Copies a session's memory to another session of the same tenant, over the contracts that a store has.

Messages, the session's documents and its artifacts are copied; documents of the user stay shared. The copy converges:
it only adds what the target lacks, so an interrupted copy is finished by repeating it, and it never replaces anything.
Not copied: archives of compactions (the visible log is copied, with its summaries), old revisions, usage, traces and
orchestration. They stay with the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memo.documents import ABSENT, NOTES, TODO, Author, DocumentKey, DocumentName, Scope
from memo.errors import SessionTaken
from memo.ids import AgentId, OwnerId, SessionRef, ToolCallId, UserId
from memo.messages import Message
from memo.provider import Capabilities, capabilities_of

_MESSAGES_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class CapturedSession:
    """The memory of a session at one moment. Artifacts are named only: their texts never change."""

    source: SessionRef
    documents: Mapping[DocumentName, str]
    messages: Sequence[Message]
    artifacts: Sequence[ToolCallId]
    left_out: Sequence[str] = ()
    """What this store cannot copy, each as a phrase."""


async def capture_session(store: Any, source: SessionRef) -> CapturedSession:
    """Read what a copy will contain, except the texts of artifacts. Raise if the store cannot be read."""
    can = capabilities_of(store)
    left_out: list[str] = []
    documents = await _documents(store, can, source)
    if documents and not (can.write or can.revisions):
        left_out.append("documents: the store is read-only")
        documents = {}
    elif not can.list_documents:
        left_out.append(f"documents other than {NOTES} and {TODO}: the store cannot list them")
    artifacts: list[ToolCallId] = []
    if can.list_artifacts and can.read_artifacts and can.write_artifacts:
        artifacts = [ToolCallId(i) for i in await store.list_tool_result_artifact_ids(str(source))]
    else:
        left_out.append("artifacts: the store cannot list, read and write them")
    messages: list[Message] = []
    if _has(store, "load_all_messages", "append_messages"):
        messages = await store.load_all_messages(str(source.tenant), str(source.session))
    else:
        left_out.append("messages: the store keeps none")
    return CapturedSession(source, documents, messages, artifacts, tuple(left_out))


async def find_difference(store: Any, captured: CapturedSession, target: SessionRef) -> str | None:
    """Return what the target has of its own, as a phrase; None if a copy to it replaces and loses nothing."""
    can = capabilities_of(store)
    for name, text in (await _documents(store, can, target)).items():
        if captured.documents.get(name) != text:
            return f"its own {name}"
    if can.list_artifacts:
        found = await store.list_tool_result_artifact_ids(str(target))
        if set(found) - set(captured.artifacts):
            return "its own artifacts"
    if _has(store, "load_all_messages"):
        messages = await store.load_all_messages(str(target.tenant), str(target.session))
        if messages != list(captured.messages[: len(messages)]):
            return "its own messages"
    return None


async def copy_session(
    store: Any, captured: CapturedSession, target: SessionRef, *, user: UserId, agent: AgentId, author: Author
) -> None:
    """Add to the target what it lacks. Raise SessionTaken, and change nothing, if it has memory of its own."""
    if (own := await find_difference(store, captured, target)) is not None:
        raise SessionTaken(f"cannot copy a session to {target.session}: it has {own}")
    can = capabilities_of(store)
    if _has(store, "get_or_create"):
        await store.get_or_create(str(target.tenant), str(user), str(agent), str(target.session))
    known = await _documents(store, can, target)
    for name, text in captured.documents.items():
        if name not in known:
            await _write_document(store, can, DocumentKey.of_session(target, name), text, author)
    await _append_missing(store, captured, target)
    await _copy_artifacts(store, captured, target)


async def _documents(store: Any, can: Capabilities, session: SessionRef) -> dict[DocumentName, str]:
    names: Sequence[DocumentName] = (NOTES, TODO)
    if can.list_documents:
        listed = await store.list_documents(session.tenant, OwnerId(session.session), Scope.SESSION)
        names = [entry.key.name for entry in listed]
    found: dict[DocumentName, str] = {}
    for name in names:
        key = DocumentKey.of_session(session, name)
        text = await store.read_memory_document(str(key.tenant), str(key.owner), str(key.scope), str(key.name))
        if text is not None:
            found[name] = text
    return found


async def _write_document(store: Any, can: Capabilities, key: DocumentKey, text: str, author: Author) -> None:
    if can.revisions:
        await store.write_document(key, text, expected=ABSENT, author=author)
    else:
        await store.write_memory_document(str(key.tenant), str(key.owner), str(key.scope), str(key.name), text)


async def _append_missing(store: Any, captured: CapturedSession, target: SessionRef) -> None:
    if not captured.messages:
        return
    tenant, session = str(target.tenant), str(target.session)
    present = len(await store.load_all_messages(tenant, session))
    for start in range(present, len(captured.messages), _MESSAGES_AT_ONCE):
        await store.append_messages(tenant, session, captured.messages[start : start + _MESSAGES_AT_ONCE])


async def _copy_artifacts(store: Any, captured: CapturedSession, target: SessionRef) -> None:
    if not captured.artifacts:
        return
    present = set(await store.list_tool_result_artifact_ids(str(target)))
    for call in captured.artifacts:
        if call not in present:
            text = await store.read_tool_result_artifact(str(captured.source), str(call))
            if text is not None:
                await store.write_tool_result_artifact(str(target), str(call), text)


def _has(store: object, *methods: str) -> bool:
    return all(callable(getattr(store, method, None)) for method in methods)
