"""Memory through both clients: the same calls, the same results, the same errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio.to_thread
import pytest

import memo
from memo.errors import Absent, RevisionConflict, SessionTaken
from sandboxd.client import AsyncClient, Client
from sandboxd.errors import InvalidRequest, NotFound
from tests.stopping_store import StoppingStore
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with memo.open_store("memory://") as inner:
        store = StoppingStore(inner, tmp_path / "stopped")
        async with serving(tmp_path, store=store, outbox=True) as world:
            yield world


async def test_the_async_client_supports_every_call(world: World) -> None:
    async with AsyncClient(world.socket) as client:
        made = await client.ensure_session("s1", "u1", agent="a")
        assert (made.user, made.agent, await client.get_session("s1")) == ("u1", "a", made)
        assert await client.list_sessions("u1") == [made]
        with pytest.raises(SessionTaken):
            await client.ensure_session("s1", "u2")
        with pytest.raises(Absent):
            await client.read_memo("s1", "NOTES.md")
        first = await client.write_memo("s1", "NOTES.md", "ä", expected=0, actor="job", reason="wäre gut")
        assert (first.revision, first.queued) == (1, False)
        assert (await client.append_memo("s1", "NOTES.md", "\n", idempotency_key="k")).revision == 2
        document = await client.read_memo("s1", "NOTES.md")
        assert (document.text, document.revision) == ("ä\n", 2)
        assert (await client.read_memo("s1", "NOTES.md", revision=1)).text == "ä"
        with pytest.raises(RevisionConflict) as lost:
            await client.write_memo("s1", "NOTES.md", "x", expected=1)
        assert lost.value.current is not None
        assert (lost.value.current.content, lost.value.current.revision) == ("ä\n", 2)
        assert [one.name for one in await client.list_memo("s1")] == ["NOTES.md"]
        history = await client.memo_history("s1", "NOTES.md")
        assert [(one.revision, one.actor, one.reason) for one in history] == [(2, "host", ""), (1, "job", "wäre gut")]
        assert "+ä" in await client.diff_memo("s1", "NOTES.md", before=0, after=1)
        assert (await client.restore_memo("s1", "NOTES.md", 1)).sha256 == first.sha256
        await client.write_memo("u1", "USER.md", "brief", scope="user")
        assert (await client.read_memo("u1", "USER.md", scope="user")).text == "brief"
        assert (await client.write_artifact("s1", "c1", "full")).revision == 1
        assert [one.id for one in await client.list_artifacts("s1")] == ["c1"]
        assert await client.read_artifact("s1", "c1") == "full"
        assert await client.append_messages("s1", [{"role": "user", "content": "hi"}]) == 1
        assert await client.append_turn("s1", [{"role": "user", "content": "ho"}], {"input": 3}) == 1
        assert [one["content"] for one in await client.load_messages("s1")] == ["hi", "ho"]
        assert [one["content"] for one in await client.load_messages("s1", limit=1)] == ["ho"]
        assert len(await client.load_messages("s1", budget=1)) == 1
        done = await client.compact_session("s1", force=True, summary="short")
        assert (done.compacted, done.archived) == (True, 1)
        assert len(await client.load_messages("s1", full=True)) == 2
        result = {"role": "toolResult", "toolCallId": "c2", "content": "x" * 9000}
        short = await client.compact_tool_results("s1", [result], max_tokens=10, keep_recent=0)
        assert short.artifacts == ["c2"]
        assert "c2.txt" in short.messages[0]["content"]
        await client.ensure_sandbox("s1", "u1")
        shown = await client.get_mirror("s1")
        paths = {one.path.removeprefix("/workspace/memo/") for one in shown}
        assert paths >= {"session/NOTES.md", "user/USER.md", "session/tool-results/c1.txt"}
        assert {one.in_sync for one in shown} == {True}
        assert await client.refresh_memo_mirror("s1") == len(shown)
        assert await client.refresh_memo_mirror("s1", "/workspace/memo/session/NOTES.md", "x") == 1
        assert await client.refresh_user_memo_mirror_for_all_sessions("u1", "USER.md") == 1
        (world.directory / "stopped").touch()
        queued = await client.write_memo("s1", "NOTES.md", "later")
        assert (queued.queued, queued.revision) == (True, None)


async def test_the_sync_client_supports_every_call(world: World) -> None:
    await anyio.to_thread.run_sync(_do_everything, world)


def _do_everything(world: World) -> None:
    with Client(world.socket) as client:
        made = client.ensure_session("s1", "u1", agent="a")
        assert client.get_session("s1") == made
        assert client.list_sessions() == [made]
        with pytest.raises(NotFound):
            client.get_session("none")
        written = client.write_memo("s1", "NOTES.md", "ä\n", actor="jöb", reason="wäre gut")
        assert written.revision == 1
        assert client.append_memo("s1", "NOTES.md", "more").revision == 2
        assert client.read_memo("s1", "NOTES.md").text == "ä\nmore"
        with pytest.raises(RevisionConflict) as lost:
            client.write_memo("s1", "NOTES.md", "x", expected=0)
        assert lost.value.current is not None
        assert lost.value.current.revision == 2
        assert [one.actor for one in client.memo_history("s1", "NOTES.md", limit=2)] == ["host", "jöb"]
        assert "+more" in client.diff_memo("s1", "NOTES.md")
        assert client.restore_memo("s1", "NOTES.md", 1).sha256 == written.sha256
        assert client.write_memo("u1", "USER.md", "x", scope="user").revision == 1
        assert [one.size for one in client.list_memo("u1", scope="user")] == [1]
        client.write_artifact("s1", "c1", "full")
        assert client.read_artifact("s1", client.list_artifacts("s1")[0].id) == "full"
        client.append_messages("s1", [{"role": "user", "content": "hi"}], idempotency_key="k")
        client.append_turn("s1", [{"role": "user", "content": "ho"}])
        assert client.compact_session("s1").compacted is False
        assert len(client.load_messages("s1")) == 2
        assert client.compact_tool_results("s1", []).messages == []
        client.ensure_sandbox("s1", "u1")
        assert client.refresh_memo_mirror("s1") == len(client.get_mirror("s1")) == 3
        assert client.refresh_user_memo_mirror_for_all_sessions("u1", "USER.md", "x") == 1
        assert client.get_mirror("s1")[0].revision == 3


@pytest.mark.parametrize("reason", ["two\nlines", "\r", "nul\0"])
def test_a_reason_that_is_not_one_line_is_refused_before_it_is_sent(tmp_path: Path, reason: str) -> None:
    with Client(tmp_path / "none") as client, pytest.raises(InvalidRequest):
        client.write_memo("s1", "NOTES.md", "x", reason=reason)
