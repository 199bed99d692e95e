"""A model that makes mistakes with the tools of memory and of sandboxes that only MCP has: each is told what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from memo import open_store
from sandboxd.client import AsyncClient
from tests.mcp_clients import DOORS, Door, connect, details_of, text_of
from tests.world.serving import ServedWorld, serving

pytestmark = pytest.mark.anyio

HANG_S = 60
TEXT = "likes tea\n\tlives in Bern\nlikes tea\n"
MISTAKES: list[tuple[str, str, dict[str, Any], str]] = [
    ("a missing name", "memo_read", {}, "name is missing"),
    ("a name that climbs", "memo_read", {"name": "../NOTES.md"}, "1 to 8 segments"),
    ("a name of nine segments", "memo_write", {"name": "a/b/c/d/e/f/g/h/i.md", "content": "x"}, "1 to 8 segments"),
    ("a reserved name", "memo_write", {"name": "trace/a.md", "content": "x"}, "trace is reserved"),
    ("an unknown scope", "memo_read", {"name": "USER.md", "scope": "team"}, "must be one of session, user"),
    ("a missing document", "memo_read", {"name": "PLAN.md"}, "memo_list shows which documents exist"),
    ("the other scope", "memo_read", {"name": "facts.md", "scope": "session"}, "memo_list shows which"),
    ("a missing revision", "memo_read", {"name": "user/facts.md", "revision": 9}, "memo_history shows which revisions"),
    ("restoring a missing one", "memo_restore", {"name": "user/facts.md", "revision": 9}, "memo_history shows which"),
    ("a write without a revision", "memo_write", {"name": "user/facts.md", "content": "x"}, "with revision=1"),
    ("a revision of the future", "memo_write", {"name": "user/facts.md", "content": "x", "revision": 7}, "revision=1"),
    (
        "a document as a directory",
        "memo_append",
        {"name": "user/facts.md/more", "content": "x"},
        "delete or move it first",
    ),
    ("an empty text", "memo_append", {"name": "user/facts.md", "content": ""}, "content must not be empty"),
    (
        "an edit that matches nothing",
        "memo_edit",
        {"name": "user/facts.md", "old_string": "    lives in Bern", "new_string": "x"},
        "line 2 is indented with 1 tab, old_string with 4 spaces",
    ),
    (
        "an edit that matches twice",
        "memo_edit",
        {"name": "user/facts.md", "old_string": "likes tea", "new_string": "x"},
        "found 2 matches, on lines 1, 3",
    ),
    (
        "an edit without effect",
        "memo_edit",
        {"name": "user/facts.md", "old_string": "Bern", "new_string": "Bern"},
        "nothing would change",
    ),
    (
        "an edit of nothing",
        "memo_edit",
        {"name": "user/facts.md", "old_string": "", "new_string": "x"},
        "old_string is empty",
    ),
    ("a tool that is not there", "memo_delete", {"name": "user/facts.md"}, "there is no such tool"),
    ("a removal without saying so", "sandbox_destroy", {}, "confirm is missing"),
    ("a removal that is not meant", "sandbox_destroy", {"confirm": False}, "nothing was removed"),
    ("a session's name that cannot be", "sandbox_fork", {"session": "a b"}, "cannot use this session id"),
    ("too many forks", "sandbox_fork", {"count": 1000}, "count must be at most 50"),
    ("a snapshot that is not there", "sandbox_create", {"from_snapshot": "snap-1"}, "cannot"),
]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServedWorld]:
    async with open_store("memory://") as store, serving(tmp_path, store=store) as world:
        with anyio.fail_after(2 * HANG_S):
            yield world


@pytest.mark.parametrize("door", DOORS)
async def test_every_mistake_is_a_result_and_changes_nothing(world: ServedWorld, door: Door) -> None:
    async with (
        AsyncClient(world.socket) as host,
        connect(door, world.url, world.token, switches=("manage",), session="s1", user="ann") as client,
    ):
        await host.ensure_sandbox("s1", "ann")
        await host.write_memo("ann", "facts.md", TEXT, scope="user")
        for kind, tool, arguments, says in MISTAKES:
            result = await client.call_tool(tool, arguments)
            assert result.is_error, kind
            assert says in text_of(result), (kind, text_of(result))
            assert "Traceback" not in text_of(result)
        assert [(one.name, one.revision) for one in await host.list_memo("ann", scope="user")] == [("facts.md", 1)]
        assert await host.list_memo("s1") == []
        assert [view.session for view in await host.list_sandboxes()] == ["s1"]


@pytest.mark.parametrize(
    "name", ["user/facts.md", "memo/user/facts.md", "./memo/user/facts.md", "/workspace/memo/user/facts.md"]
)
async def test_a_path_of_the_sandbox_names_the_document(world: ServedWorld, name: str) -> None:
    async with (
        AsyncClient(world.socket) as host,
        connect("http", world.url, world.token, session="s1", user="ann") as client,
    ):
        written = await client.call_tool("memo_write", {"name": name, "content": TEXT})
        assert details_of(written).items() >= {"name": "facts.md", "scope": "user"}.items(), text_of(written)
        assert (await host.read_memo("ann", "facts.md", scope="user")).text == TEXT


async def test_a_directory_called_memo_is_an_ordinary_name(world: ServedWorld) -> None:
    async with connect("http", world.url, world.token, session="s1", user="ann") as client:
        written = await client.call_tool("memo_write", {"name": "memo/plan.md", "content": "x"})
    assert details_of(written).items() >= {"name": "memo/plan.md", "scope": "session"}.items()


async def test_a_deleted_document_is_named_as_such_and_restored(world: ServedWorld) -> None:
    async with (
        AsyncClient(world.socket) as host,
        connect("http", world.url, world.token, session="s1", user="ann") as client,
    ):
        await host.write_memo("ann", "facts.md", TEXT, scope="user")
        await host.delete_memo("ann", "facts.md", scope="user")
        told = text_of(await client.call_tool("memo_read", {"name": "facts.md", "scope": "user"}))
        assert "was deleted in revision 2" in told
        assert "memo_history the revisions of one that was deleted" in told
        await client.call_tool("memo_restore", {"name": "facts.md", "scope": "user", "revision": 1})
        assert (await host.read_memo("ann", "facts.md", scope="user")).text == TEXT
