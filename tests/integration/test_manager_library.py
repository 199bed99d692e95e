"""SandboxManager as a library: a directory and a store are enough, and real containers show what the store has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from memo import InMemoryStore
from memo.app import create_agent_app
from memo.documents import Author, DocumentKey
from memo.errors import InvalidKey, Unsupported
from memo.ids import SessionRef, UserId
from sandboxd import SandboxManager
from sandboxd.errors import InvalidRequest, SandboxNotFound
from sandboxd.models.sandbox import SandboxRequest
from sandboxd.runner.calls import Exec
from tests.guide_store import GuideStore
from tests.running import unmount_below

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

REF = SessionRef.of("acme", "s1")
NOTES = "/workspace/memo/session/NOTES.md"
USER = "/workspace/memo/user/USER.md"
RESULT = "/workspace/memo/session/tool-results/call-1.txt"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, value in {
        "ENGINE": "bubblewrap",
        "POOL": "0",
        "CACHE": "disk",
        "SOCKET": str(tmp_path / "unused"),
    }.items():
        monkeypatch.setenv(f"SANDBOXD_{name}", value)
    yield tmp_path / "data"
    unmount_below(tmp_path / "data")


@pytest.fixture
async def store() -> AsyncIterator[InMemoryStore]:
    async with InMemoryStore() as opened:
        yield opened


async def create(manager: SandboxManager, ref: SessionRef = REF, user: str = "ann") -> None:
    await manager.ensure_sandbox(ref, SandboxRequest(user=UserId(user)))


async def shown(manager: SandboxManager, path: str, ref: SessionRef = REF) -> str:
    with await manager.call(ref) as runner:
        result = await runner.exec(Exec(("cat", path)))
    assert result.exit_code == 0, result.stderr
    return result.stdout.decode()


# Specification: 001.57, 001.61, 001.66, 001.68
async def test_one_line_makes_a_manager_whose_containers_show_the_store(data: Path, store: InMemoryStore) -> None:
    await store.write_memory_document("acme", "s1", "session", "NOTES.md", "notes\n")
    await store.write_memory_document("acme", "ann", "user", "USER.md", "profile\n")
    await store.write_tool_result_artifact("acme:s1", "call-1", "result\n")
    async with SandboxManager(str(data), memo_provider=store) as manager:
        await create(manager)
        assert [await shown(manager, path) for path in (NOTES, USER, RESULT)] == ["notes\n", "profile\n", "result\n"]
        with await manager.call(REF) as runner:
            refused = await runner.exec(Exec(("sh", "-c", f"echo x > {NOTES}")))
        assert refused.exit_code != 0
        await manager.destroy(REF)


# Specification: 001.58
async def test_what_an_agent_writes_is_written_back_and_shown(data: Path, store: InMemoryStore) -> None:
    async with SandboxManager(data, memo_provider=store) as manager:
        await create(manager)
        author = Author("agent", REF.session, "asked")
        for path, text in ((NOTES, "new notes\n"), (USER, "new profile\n"), (RESULT, "new result\n")):
            await manager.write_memo_back("s1", path, text, author=author)
            assert await shown(manager, path) == text
        assert await store.read_memory_document("acme", "s1", "session", "NOTES.md") == "new notes\n"
        assert await store.read_memory_document("acme", "ann", "user", "USER.md") == "new profile\n"
        assert await store.read_tool_result_artifact("acme:s1", "call-1") == "new result\n"
        (revision,) = await store.document_history(DocumentKey.of_session(REF, "NOTES.md"))
        assert (revision.actor, revision.reason) == ("agent", "asked")
        with pytest.raises(InvalidKey):
            await manager.write_memo_back("s1", "/workspace/memo/session/../../etc/passwd", "x")
        with pytest.raises(SandboxNotFound, match="give tenant:session"):
            await manager.write_memo_back("s2", NOTES, "x")
        await manager.destroy(REF)


async def test_without_a_sandbox_a_session_is_written_by_its_reference(data: Path, store: InMemoryStore) -> None:
    await store.get_or_create("acme", "ann", "agent", "s1")
    async with SandboxManager(data, memo_provider=store) as manager:
        await manager.write_memo_back("acme:s1", NOTES, "notes\n")
        await manager.write_memo_back('["acme","s1"]', USER, "profile\n")
        assert await store.read_memory_document("acme", "s1", "session", "NOTES.md") == "notes\n"
        assert await store.read_memory_document("acme", "ann", "user", "USER.md") == "profile\n"


# Specification: 001.73, 001.74, 001.77
async def test_mirrors_are_refreshed_in_the_positional_forms_of_the_guide(data: Path, tmp_path: Path) -> None:
    store, other = GuideStore(tmp_path / "store.json"), SessionRef.of("acme", "s2")
    async with SandboxManager(data, memo_provider=store) as manager:
        assert await manager.refresh_memo_mirror("s1", NOTES, "early\n") == 0  # a no-op without a sandbox
        await create(manager)
        await create(manager, other)
        await store.write_memory_document("acme", "s1", "session", "NOTES.md", "by the host\n")
        assert await manager.refresh_memo_mirror("s1", NOTES, "by the host\n") == 1
        assert await shown(manager, NOTES) == "by the host\n"
        await store.write_memory_document("acme", "ann", "user", "USER.md", "profile\n")
        assert await manager.refresh_user_memo_mirror_for_all_sessions("acme", "ann", "USER.md", "profile\n") == 2
        assert [await shown(manager, USER, ref) for ref in (REF, other)] == ["profile\n", "profile\n"]
        await create(manager, SessionRef.of("globex", "s1"))
        with pytest.raises(InvalidRequest, match="2 tenants have one with this id"):
            await manager.refresh_memo_mirror("s1", NOTES, "x")
        for ref in (REF, other, SessionRef.of("globex", "s1")):
            await manager.destroy(ref)


# Specification: 001.62
async def test_a_provider_that_only_reads_is_enough(data: Path) -> None:
    class Reader:
        async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
            return f"{tenant} {owner}\n" if name != "TODO.md" else None

    async with SandboxManager(data, memo_provider=Reader()) as manager:
        await create(manager)
        assert [await shown(manager, path) for path in (NOTES, USER)] == ["acme s1\n", "acme ann\n"]
        with pytest.raises(Unsupported, match="this store is read-only"):
            await manager.write_memo_back("s1", NOTES, "x")
        await manager.destroy(REF)


# Specification: 001.71
async def test_an_app_shows_what_its_compaction_stores(data: Path, store: InMemoryStore) -> None:
    async with SandboxManager(data, memo_provider=store) as manager:
        app = create_agent_app(session_store=store, sandbox_manager=manager, summarize=lambda _: "they talked")
        session = await app.start_session("acme", "ann", "agent", "s1")
        await create(manager)
        long = {"role": "toolResult", "toolCallId": "call-1", "content": "line\n" * 5000}
        await app.compact_tool_results(session.ref, [long], keep_recent=0)
        assert await shown(manager, RESULT) == "line\n" * 5000
        await app.finish_turn(session.ref, [{"role": "user", "content": str(n)} for n in range(4)], {})
        assert await app.compact_if_needed(session.ref, force=True)
        assert "they talked" in await shown(manager, NOTES)
        await manager.destroy(REF)
