"""Documents with paths as names over HTTP and through the clients: list, delete, move, restore, and what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

import memo
from memo.errors import Absent, NameTaken, RevisionConflict, TooMany, Unsupported
from sandboxd.client import AsyncClient, AsyncSandbox, Client
from tests.unit.test_api_memo import SESSION, USER, Wire, wired
from tests.unit.test_memory_documents import PlainProvider
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

NAME = "memories/projects/x.md"


@pytest.fixture(params=["memory", "sqlite", "file"])
async def wire(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/memo.db", "file": f"file://{tmp_path}/memo"}
    async with memo.open_store(urls[request.param]) as store, serving(tmp_path, store=store) as world:
        async for one in wired(world):
            yield one


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with memo.open_store("memory://") as store, serving(tmp_path, store=store) as world:
        yield world


@pytest.mark.parametrize("base", [SESSION, USER])
async def test_a_document_lives_at_a_path_is_deleted_and_restored(wire: Wire, base: str) -> None:
    path = f"{base}/memo/{NAME}"
    assert (await wire.json("PUT", path, data=b"one"))["revision"] == 1
    assert (await wire.json("POST", path, data=b" two"))["revision"] == 2
    assert (await wire.ask("GET", path))[2] == b"one two"
    deleted = await wire.json("DELETE", path, headers={"If-Match": '"2"', "X-Memo-Actor": "ann"})
    assert deleted == {"name": NAME, "revision": 3}
    problem = await wire.problem("GET", path)
    assert (problem["status"], problem["code"]) == (404, "memo.absent")
    assert problem["detail"].endswith("it was deleted in revision 3; an earlier revision can be restored")
    assert (await wire.ask("GET", f"{path}?revision=2"))[2] == b"one two"
    assert (await wire.problem("GET", f"{path}?revision=3"))["code"] == "memo.absent"
    history = (await wire.json("GET", f"{path}/history"))["items"]
    assert [(r["revision"], r["deleted"], r["actor"]) for r in history] == [
        (3, True, "ann"),
        (2, False, "host"),
        (1, False, "host"),
    ]
    assert (await wire.ask("GET", f"{path}/diff"))[2].decode().splitlines()[-2:] == [
        "-one two",
        "\\ No newline at end of file",
    ]
    assert (await wire.json("GET", f"{base}/memo"))["items"] == []
    assert (await wire.problem("POST", f"{path}/restore", json={"revision": 3}))["code"] == "memo.absent"
    assert (await wire.json("POST", f"{path}/restore", json={"revision": 2}))["revision"] == 4
    assert (await wire.ask("GET", path))[2] == b"one two"


async def test_a_move_names_both_sides_and_refuses_an_existing_target(wire: Wire) -> None:
    await wire.json("PUT", f"{SESSION}/memo/{NAME}", data=b"text")
    await wire.json("PUT", f"{SESSION}/memo/taken.md", data=b"kept")
    await wire.json("PUT", f"{SESSION}/memo/memories/y.md", data=b"kept")
    move = f"{SESSION}/memo-move"
    for to in ("taken.md", "taken.md/below.md", "memories"):
        problem = await wire.problem("POST", move, json={"from": NAME, "to": to})
        assert (problem["status"], problem["code"]) == (409, "memo.name_taken")
    refused = await wire.problem("POST", move, json={"from": NAME, "to": "new.md"}, headers={"If-Match": '"9"'})
    assert (refused["status"], refused["code"], refused["text"]) == (412, "memo.conflict", "text")
    status, headers, body = await wire.ask("POST", move, json={"from": NAME, "to": "new.md"})
    answer = json.loads(body)
    assert (status, headers["etag"], answer["name"], answer["revision"]) == (200, '"1"', "new.md", 1)
    (first,) = (await wire.json("GET", f"{SESSION}/memo/new.md/history"))["items"]
    last = (await wire.json("GET", f"{SESSION}/memo/{NAME}/history"))["items"][0]
    assert (first["moved_from"], first["moved_to"], first["deleted"]) == (NAME, None, False)
    assert (last["moved_from"], last["moved_to"], last["deleted"]) == (None, "new.md", True)
    gone = await wire.problem("GET", f"{SESSION}/memo/{NAME}")
    assert "it was moved to new.md in revision 2" in gone["detail"]
    absent = await wire.problem("POST", move, json={"from": NAME, "to": "other.md"})
    assert (absent["status"], absent["code"]) == (404, "memo.absent")
    mirrored = await wire.json("GET", f"{SESSION}/mirror")
    assert [(f["path"], f["in_sync"]) for f in mirrored["items"]] == [
        ("/workspace/memo/session/memories/y.md", True),
        ("/workspace/memo/session/new.md", True),
        ("/workspace/memo/session/taken.md", True),
    ]


async def test_a_write_based_on_a_deleted_revision_is_refused_and_one_that_creates_is_not(wire: Wire) -> None:
    path = f"{SESSION}/memo/{NAME}"
    await wire.json("PUT", path, data=b"one")
    await wire.json("DELETE", path)
    for condition in ('"1"', "*"):
        problem = await wire.problem("PUT", path, data=b"two", headers={"If-Match": condition})
        assert (problem["status"], problem["code"], problem["deletion"], problem["text"]) == (
            412,
            "memo.conflict",
            2,
            None,
        )
    assert (await wire.problem("DELETE", path))["code"] == "memo.absent"
    assert (await wire.json("PUT", path, data=b"two", headers={"If-None-Match": "*"}))["revision"] == 3
    assert (await wire.json("PUT", path, data=b"three", headers={"If-Match": "*"}))["revision"] == 4


async def test_a_retried_deletion_or_move_happens_once(wire: Wire) -> None:
    path = f"{SESSION}/memo/{NAME}"
    await wire.json("PUT", path, data=b"one")
    key = {"Idempotency-Key": "delete-1"}
    assert await wire.json("DELETE", path, headers=key) == await wire.json("DELETE", path, headers=key)
    await wire.json("PUT", path, data=b"two")
    body, key = {"from": NAME, "to": "new.md"}, {"Idempotency-Key": "move-1"}
    first = await wire.json("POST", f"{SESSION}/memo-move", json=body, headers=key)
    assert await wire.json("POST", f"{SESSION}/memo-move", json=body, headers=key) == first
    assert len((await wire.json("GET", f"{path}/history"))["items"]) == 4


async def test_a_list_takes_a_prefix(wire: Wire) -> None:
    for name in (NAME, "memories/y.md", "memories.md", "NOTES.md"):
        await wire.json("PUT", f"{SESSION}/memo/{name}", data=b"text")

    async def names(query: str) -> list[str]:
        return [item["name"] for item in (await wire.json("GET", f"{SESSION}/memo{query}"))["items"]]

    assert await names("") == ["NOTES.md", "memories.md", NAME, "memories/y.md"]
    assert await names("?prefix=memories/") == [NAME, "memories/y.md"]
    assert await names("?prefix=none") == []


@pytest.mark.parametrize(
    "name",
    [
        "tool-results/x.txt",
        "trace/x.md",
        "NOTES.md/x.md",
        "a/.hidden",
        "a//b",
        "a/b/",
        "a/../b",
        "a/b/c/d/e/f/g/h/i",
        "a/restore",
        ".manifest.json",
    ],
)
async def test_an_unsafe_name_is_refused(wire: Wire, name: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        problem = await wire.problem(method, f"{SESSION}/memo/{name}", data=b"x" if method == "PUT" else None)
        assert problem["status"] == 400
        assert problem["code"] in ("memo.invalid_key", "request.invalid")
    for body in ({"from": NAME, "to": name}, {"from": name, "to": NAME}):
        problem = await wire.problem("POST", f"{SESSION}/memo-move", json=body)
        assert problem["code"] == "memo.invalid_key"
    assert (await wire.json("GET", f"{SESSION}/memo"))["items"] == []


async def test_the_number_of_documents_is_bounded_but_the_well_known_ones_fit_always(tmp_path: Path) -> None:
    limits = memo.StoreOptions(limits=memo.StoreLimits(documents=3))
    async with (
        memo.open_store(f"sqlite:///{tmp_path}/memo.db", limits) as store,
        serving(tmp_path, store=store) as world,
        AsyncClient(str(world.socket), tenant="acme") as client,
    ):
        for number in range(3):
            await client.write_memo("s1", f"memories/{number}.md", "text")  # a session that has no sandbox
        with pytest.raises(TooMany, match=r"there are 3 documents already, which is the limit; delete some first"):
            await client.write_memo("s1", "memories/3.md", "text")
        await client.write_memo("s1", "NOTES.md", "text")
        await client.move_memo("s1", "memories/0.md", "memories/moved.md")
        await client.delete_memo("s1", "memories/1.md")
        await client.delete_memo("s1", "memories/2.md")
        await client.write_memo("s1", "memories/3.md", "text")
        assert len(await client.list_memo("s1")) == 3


async def test_the_clients_delete_move_and_list_by_prefix(world: World) -> None:
    def use_sync() -> None:
        with Client(str(world.socket), tenant="acme") as client:
            _exercise_errors(client)

    async with AsyncClient(str(world.socket), tenant="acme") as client:
        await client.ensure_session("s1", user="ann")
        await client.write_memo("s1", NAME, "one")
        assert (await client.move_memo("s1", NAME, "a/b.md", expected=1, reason="tidy")).revision == 1
        assert [d.name for d in await client.list_memo("s1", prefix="a/")] == ["a/b.md"]
        assert (await client.delete_memo("s1", "a/b.md", expected=1)).revision == 2
        assert await client.list_memo("s1") == []
        await client.restore_memo("s1", "a/b.md", 1)
        await client.delete_memo("s1", "a/b.md")
    await anyio.to_thread.run_sync(use_sync)


def _exercise_errors(client: Client) -> None:
    client.write_memo("s1", NAME, "one")
    client.write_memo("s1", "taken.md", "kept")
    with pytest.raises(NameTaken):
        client.move_memo("s1", NAME, "taken.md")
    with pytest.raises(RevisionConflict) as caught:
        client.delete_memo("s1", NAME, expected=7)
    assert caught.value.current is not None
    assert client.delete_memo("s1", NAME).revision > 1
    with pytest.raises(Absent, match="can be restored"):
        client.read_memo("s1", NAME)
    with pytest.raises(RevisionConflict) as caught:
        client.write_memo("s1", NAME, "two", expected=1)
    assert (caught.value.current, caught.value.deletion) == (None, client.memo_history("s1", NAME)[0].revision)


async def test_the_memory_of_a_sandbox_object_is_a_tree(world: World) -> None:
    async with AsyncClient(str(world.socket), tenant="acme") as client:
        sandbox = await AsyncSandbox.create("s1", user="ann", client=client)
        await sandbox.memo.write(NAME, "one", scope="user")
        await sandbox.memo.move(NAME, "memories/y.md", scope="user")
        assert [d.name for d in await sandbox.memo.list(prefix="memories/", scope="user")] == ["memories/y.md"]
        assert (await sandbox.memo.delete("memories/y.md", expected=1, scope="user")).revision == 2


async def test_a_plain_provider_says_that_it_cannot_delete(tmp_path: Path) -> None:
    async with serving(tmp_path, store=PlainProvider()) as world, AsyncClient(str(world.socket)) as client:
        await client.write_memo("s1", NAME, "one")
        assert (await client.read_memo("s1", NAME)).text == "one"
        with pytest.raises(Unsupported, match="this store cannot delete documents"):
            await client.delete_memo("s1", NAME)
        calls: list[Any] = [partial(client.move_memo, "s1", NAME, "x.md")]
        for call in calls:
            with pytest.raises(Unsupported, match="this store cannot move documents"):
                await call()
