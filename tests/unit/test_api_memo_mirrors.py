"""Memory over the wire with real mirrors: what a route or a tool writes is in the files a container would see."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import memo
from memo.documents import DocumentKey
from memo.ids import SessionRef
from tests.unit.test_api_memo import NOTES, SESSION, TENANT, USER, Wire, wired
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

MEMO = "/workspace/memo"


class Seen:
    """A wire, and the mirrors as their containers would see them."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def text(self, path: str, session: str = "s1") -> str:
        return (self.wire.world.mirror(session) / path).read_text()

    async def tool(self, name: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await self.wire.json("POST", f"{SESSION}/tools/{name}", json=arguments)
        return answer


@pytest.fixture(params=["memory", "sqlite", "file"])
async def seen(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Seen]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/memo.db", "file": f"file://{tmp_path}/store"}
    async with (
        memo.open_store(urls[request.param]) as store,
        serving(tmp_path, store=store, outbox=True) as world,
    ):
        async for wire in wired(world):
            yield Seen(wire)


# Specification: 001.75
async def test_a_write_is_in_the_mirror_before_its_answer(seen: Seen) -> None:
    for number in range(5):
        await seen.wire.json("PUT", NOTES, data=f"text {number}".encode())
        assert seen.text("session/NOTES.md") == f"text {number}"
    await seen.wire.json("POST", NOTES, data=b" and more")
    assert seen.text("session/NOTES.md") == "text 4 and more"
    await seen.wire.json("POST", f"{NOTES}/restore", json={"revision": 2})
    assert seen.text("session/NOTES.md") == "text 1"
    await seen.wire.json("PUT", f"{SESSION}/artifacts/c1", data=b"full")
    assert seen.text("session/tool-results/c1.txt") == "full"


# Specification: 001.20
async def test_tools_write_through_the_store_into_the_mirror(seen: Seen) -> None:
    path = f"{MEMO}/session/NOTES.md"
    assert (await seen.tool("Write", file_path=path, contents="one\n"))["details"]["revision"] == 1
    assert (await seen.tool("Edit", file_path=path, old_string="one", new_string="two"))["ok"]
    assert (await seen.tool("write_notes", content="three"))["ok"]
    assert seen.text("session/NOTES.md") == "two\nthree\n"
    assert (await seen.tool("write_todo", todos=[{"id": "a", "content": "x", "status": "pending"}]))["ok"]
    assert (await seen.tool("write_todo", todos=[{"id": "a", "status": "completed"}], merge=True))["ok"]
    assert seen.text("session/TODO.md") == "# TODO\n\n- [x] (a) x\n"
    artifact = f"{MEMO}/session/tool-results/c1.txt"
    assert (await seen.tool("Write", file_path=artifact, contents="full"))["ok"]
    assert seen.text("session/tool-results/c1.txt") == "full"
    history = (await seen.wire.json("GET", f"{NOTES}/history"))["items"]
    assert [(one["actor"], one["session"], one["reason"]) for one in history] == [
        ("agent", "s1", "write_notes"),
        ("agent", "s1", "Edit"),
        ("agent", "s1", "Write"),
    ]


async def test_a_users_document_written_in_one_sandbox_appears_in_the_others(seen: Seen) -> None:
    await seen.wire.json("PUT", f"{TENANT}/sessions/s2/sandbox", json={"user": "u1"})
    await seen.wire.json("PUT", f"{TENANT}/sessions/s3/sandbox", json={"user": "u2"})
    assert (await seen.tool("Write", file_path=f"{MEMO}/user/USER.md", contents="brief"))["ok"]
    assert seen.text("user/USER.md") == seen.text("user/USER.md", "s2") == "brief"
    with pytest.raises(FileNotFoundError):
        seen.text("user/USER.md", "s3")
    assert await seen.wire.json("POST", f"{USER}/mirror/refresh", json={"name": "USER.md"}) == {"refreshed": 2}


async def test_a_stale_write_is_refused_or_merged(seen: Seen) -> None:
    await seen.wire.json("PUT", NOTES, data=b"a\nb\nc\nd\ne\n")
    await seen.wire.json("PUT", NOTES, data=b"A\nb\nc\nd\ne\n")
    stale = {"data": b"a\nb\nc\nd\nE\n", "headers": {"if-match": '"1"'}}
    problem = await seen.wire.problem("PUT", NOTES, **stale)
    assert (problem["code"], problem["revision"], problem["text"]) == ("memo.conflict", 2, "A\nb\nc\nd\ne\n")
    merged = await seen.wire.json("PUT", f"{NOTES}?merge=true", **stale)
    assert (merged["revision"], merged["merged"]) == (3, True)
    assert seen.text("session/NOTES.md") == "A\nb\nc\nd\nE\n"
    clash = {"data": b"mine\nb\nc\nd\ne\n", "headers": {"if-match": '"1"'}}
    problem = await seen.wire.problem("PUT", f"{NOTES}?merge=true", **clash)
    assert problem["text"] == "A\nb\nc\nd\nE\n"
    _, _, kept = await seen.wire.ask("GET", f"{SESSION}/memo/{problem['copy']}")
    assert kept == b"mine\nb\nc\nd\ne\n"


async def test_a_direct_write_to_the_store_appears_in_the_mirror(seen: Seen) -> None:
    store = seen.wire.memory.client.store
    await store.write_document(DocumentKey.of_session(SessionRef.of("acme", "s1"), "NOTES.md"), "direct")
    assert await seen.wire.json("POST", f"{SESSION}/mirror/refresh", json={"path": f"{MEMO}/session/NOTES.md"}) == {
        "refreshed": 1
    }
    assert seen.text("session/NOTES.md") == "direct"
    (file,) = (await seen.wire.json("GET", f"{SESSION}/mirror"))["items"]
    assert (file["path"].endswith("session/NOTES.md"), file["revision"], file["in_sync"]) == (True, 1, True)


async def test_compaction_is_in_the_mirror_before_its_answer(seen: Seen) -> None:
    messages = [{"role": "user", "content": f"question {number}"} for number in range(4)]
    messages.append({"role": "toolResult", "toolCallId": "c1", "content": "x" * 9000})
    await seen.wire.json("POST", f"{SESSION}/messages", json={"messages": messages})
    short = await seen.wire.json(
        "POST", f"{SESSION}/tool-results", json={"messages": messages, "keep_recent": 0, "max_tokens": 10}
    )
    assert short["artifacts"] == ["c1"]
    assert seen.text("session/tool-results/c1.txt") == "x" * 9000
    assert (await seen.wire.json("POST", f"{SESSION}/compaction", json={"force": True}))["compacted"] is True
    assert "- question 1" in seen.text("session/NOTES.md")


async def test_of_many_writers_with_the_same_revision_one_wins(seen: Seen) -> None:
    await seen.wire.json("PUT", NOTES, data=b"base")
    outcomes: list[int] = []

    async def one(number: int) -> None:
        status, _, body = await seen.wire.ask(
            "PUT", NOTES, data=f"writer {number}".encode(), headers={"if-match": '"1"'}
        )
        outcomes.append(status)
        if status == 412:
            assert json.loads(body)["revision"] == 2

    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(one, number)
    assert sorted(outcomes) == [200] + [412] * 11
    _, _, body = await seen.wire.ask("GET", NOTES)
    assert seen.text("session/NOTES.md") == body.decode()


class OnlyReads:
    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        return "kept elsewhere" if name == "NOTES.md" else None


# Specification: 001.62
async def test_a_store_that_only_reads_is_shown_and_refuses_writes(tmp_path: Path) -> None:
    async with serving(tmp_path, store=OnlyReads()) as world:
        async for wire in wired(world):
            assert (world.mirror("s1") / "session" / "NOTES.md").read_text() == "kept elsewhere"
            for method, target in [("PUT", NOTES), ("POST", NOTES), ("PUT", f"{SESSION}/artifacts/c1")]:
                problem = await wire.problem(method, target, data=b"x")
                assert (problem["status"], problem["code"]) == (501, "memo.unsupported")
            write = {"file_path": f"{MEMO}/session/NOTES.md", "contents": "x"}
            answer = await wire.json("POST", f"{SESSION}/tools/Write", json=write)
            assert (answer["ok"], answer["details"]["code"]) == (False, "memo.unsupported")
            assert [one["name"] for one in (await wire.json("GET", f"{SESSION}/memo"))["items"]] == ["NOTES.md"]


async def test_a_document_read_over_the_api_counts_as_seen_by_its_session(seen: Seen) -> None:
    path = f"{MEMO}/session/NOTES.md"
    await seen.wire.json("PUT", NOTES, data=b"one\n")
    await seen.wire.ask("GET", f"{NOTES}?revision=1")  # a read of a given revision never counts as seen
    assert (await seen.tool("Write", file_path=path, contents="mine\n"))["ok"] is False
    await seen.wire.json("PUT", NOTES, data=b"two\n")
    status, _, body = await seen.wire.ask("GET", NOTES)
    assert (status, body) == (200, b"two\n")
    assert (await seen.tool("Write", file_path=path, contents="mine\n"))["ok"] is True
    await seen.wire.json("PUT", NOTES, data=b"three\n", headers={"If-Match": '"3"'})  # the host need not have read it
    assert (await seen.tool("Write", file_path=path, contents="mine again\n"))["ok"] is False
