"""Copies of a session's memory: complete, convergent, and never at the expense of what the target has."""

from __future__ import annotations

from typing import Any

import pytest

from memo.documents import Author, DocumentKey, Scope
from memo.errors import SessionTaken, Unavailable
from memo.ids import AgentId, OwnerId, SessionRef, TenantId, UserId
from memo.session_copy import capture_session, copy_session, find_difference
from memo.stores import BaseStore
from tests.plain_store import PlainStore

pytestmark = pytest.mark.anyio

SOURCE, TARGET = SessionRef.of("acme", "s1"), SessionRef.of("acme", "s2")
ADA, AGENT = UserId("ada"), AgentId("coder")
FORKED = Author("fork", reason="forked from s1")


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture
async def filled(store: BaseStore) -> BaseStore:
    """A session with messages, of which some are compacted, documents and artifacts."""
    await store.get_or_create("acme", "ada", "coder", "s1")
    await store.append_messages("acme", "s1", [said(f"message {number}") for number in range(30)])
    assert await store.compact_if_needed("acme", "s1", lambda messages: "a summary", force=True)
    await store.append_messages("acme", "s1", [said("the newest")])
    await store.write_document(DocumentKey.of_session(SOURCE, "TODO.md"), "- [ ] fork\n")
    await store.write_document(DocumentKey.of_session(SOURCE, "plan.md"), "# Ünïcödé\r\n")
    await store.write_document(DocumentKey.of_session(SOURCE, "memories/projects/x.md"), "a project\n")
    await store.write_document(DocumentKey.of_session(SOURCE, "memories/gone.md"), "deleted\n")
    await store.delete_document(DocumentKey.of_session(SOURCE, "memories/gone.md"))
    await store.write_document(DocumentKey.of_user(SOURCE.tenant, ADA, "USER.md"), "shared\n")
    for number in range(5):
        await store.write_tool_result_artifact(SOURCE, f"call-{number}", f"output {number}\n" * 100)
    return store


async def memory_of(store: Any, ref: SessionRef) -> dict[str, Any]:
    listed = await store.list_documents(ref.tenant, OwnerId(ref.session), Scope.SESSION)
    keys = [entry.key for entry in listed]
    artifacts = await store.list_tool_result_artifact_ids(ref)
    return {
        "messages": await store.load_all_messages(ref.tenant, ref.session),
        "documents": {key.name: (await store.read_document(key)).content for key in keys},
        "artifacts": {i: await store.read_tool_result_artifact(ref, i) for i in artifacts},
    }


async def fork(store: Any, target: SessionRef = TARGET) -> None:
    captured = await capture_session(store, SOURCE)
    await copy_session(store, captured, target, user=ADA, agent=AGENT, author=FORKED)


async def test_a_copy_has_the_messages_documents_and_artifacts_of_its_source(filled: BaseStore) -> None:
    before = await memory_of(filled, SOURCE)
    await fork(filled)
    assert await memory_of(filled, TARGET) == before == await memory_of(filled, SOURCE)
    session = await filled.get_session("acme", "s2")
    assert session is not None
    assert (session.user, session.agent) == (ADA, AGENT)
    (revision,) = await filled.document_history(DocumentKey.of_session(TARGET, "TODO.md"))
    assert (revision.actor, revision.reason) == ("fork", "forked from s1")


async def test_a_copy_and_its_source_diverge(filled: BaseStore) -> None:
    await fork(filled)
    await filled.append_messages("acme", "s2", [said("only here")])
    await filled.write_document(DocumentKey.of_session(TARGET, "TODO.md"), "- [x] fork\n")
    assert (await filled.load_all_messages("acme", "s1"))[-1] == said("the newest")
    assert await filled.read_memory_document("acme", "s1", "session", "TODO.md") == "- [ ] fork\n"
    assert len(await filled.load_full_history("acme", "s1")) == 31


class Interrupted:
    """A store that is unavailable after a number of writes."""

    def __init__(self, store: BaseStore, writes: int) -> None:
        self._store = store
        self._left = writes

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not name.startswith(("write_", "append_", "get_or_create")):
            return method

        async def write(*args: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                raise Unavailable("cannot write: a test says so")
            return await method(*args, **named)

        return write


@pytest.mark.parametrize("writes", range(11))
async def test_a_repeated_copy_finishes_an_interrupted_one(filled: BaseStore, writes: int) -> None:
    if writes < 10:
        with pytest.raises(Unavailable):
            await fork(Interrupted(filled, writes))
    await fork(filled)
    await fork(filled)
    assert await memory_of(filled, TARGET) == await memory_of(filled, SOURCE)
    for entry in await filled.list_documents(TARGET.tenant, OwnerId(TARGET.session), Scope.SESSION):
        assert entry.revision == 1


@pytest.mark.parametrize("own", ["NOTES.md", "messages", "artifacts"])
async def test_a_session_with_memory_of_its_own_is_refused_and_unchanged(filled: BaseStore, own: str) -> None:
    await filled.get_or_create("acme", "ada", "coder", "s2")
    if own == "messages":
        await filled.append_messages("acme", "s2", [said("mine")])
    elif own == "artifacts":
        await filled.write_tool_result_artifact(TARGET, "mine", "text")
    else:
        await filled.write_memory_document("acme", "s2", "session", own, "mine\n")
    before = await memory_of(filled, TARGET)
    assert await find_difference(filled, await capture_session(filled, SOURCE), TARGET) == f"its own {own}"
    with pytest.raises(SessionTaken, match=f"its own {own}"):
        await fork(filled)
    assert await memory_of(filled, TARGET) == before


async def test_a_copy_of_an_unknown_session_is_an_empty_session(store: BaseStore) -> None:
    await fork(store)
    assert await store.load_all_messages("acme", "s2") == []
    assert await store.get_session("acme", "s2") is not None


async def test_more_messages_than_one_append_are_copied_in_order(store: BaseStore) -> None:
    await store.get_or_create("acme", "ada", "coder", "s1")
    await store.append_messages("acme", "s1", [said(str(number)) for number in range(1203)])
    await fork(store)
    assert await store.load_all_messages("acme", "s2") == await store.load_all_messages("acme", "s1")


async def test_a_plain_provider_copies_what_it_can_and_says_what_it_cannot(tmp_path: Any) -> None:
    plain = PlainStore(tmp_path)
    await plain.write_memory_document("acme", "s1", "session", "NOTES.md", "notes\n")
    await plain.write_tool_result_artifact("acme:s1", "call-1", "output\n")
    captured = await capture_session(plain, SOURCE)
    assert captured.left_out == (
        "documents other than NOTES.md and TODO.md: the store cannot list them",
        "messages: the store keeps none",
    )
    await fork(plain)
    assert await plain.read_memory_document("acme", "s2", "session", "NOTES.md") == "notes\n"
    assert await plain.read_tool_result_artifact("acme:s2", "call-1") == "output\n"


async def test_a_read_only_provider_says_that_nothing_can_be_copied() -> None:
    class OnlyReads:
        async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
            return "text\n" if owner == "s1" else None

    captured = await capture_session(OnlyReads(), SOURCE)
    assert [reason.partition(":")[0] for reason in captured.left_out] == ["documents", "artifacts", "messages"]
    await copy_session(OnlyReads(), captured, TARGET, user=ADA, agent=AGENT, author=FORKED)


async def test_another_tenants_session_of_the_same_name_is_not_read(filled: BaseStore) -> None:
    captured = await capture_session(filled, SessionRef(TenantId("other"), SOURCE.session))
    assert (captured.documents, list(captured.messages), captured.artifacts) == ({}, [], [])
