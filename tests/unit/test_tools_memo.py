"""Tools that write memory: through the store, compared with what the session saw, and never in the container."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import memo
from memo.documents import ArtifactKey, Author, DocumentKey
from memo.ids import SessionRef, UserId
from memo.paths import key_at
from sandboxd.models.tool import ToolResult
from sandboxd.tools import Toolbox, run_tool
from sandboxd.tools.checklist import ChecklistItem, TodoStatus, merge_items, parse_list, render_items
from sandboxd.tools.context import MODEL_CHARS, ToolContext
from tests.stopping_store import StoppingStore
from tests.world.world import World, open_world

pytestmark = pytest.mark.anyio

TOOLBOX = Toolbox.discover()
REF = SessionRef.of("t", "s")
USER = UserId("u")
NOTES = "/workspace/memo/session/NOTES.md"
TODO = "/workspace/memo/session/TODO.md"
USER_MD = "/workspace/memo/user/USER.md"


@dataclass
class Desk:
    """A session with a runner and memory, and direct access to the store."""

    world: World
    store: Any

    async def call(self, tool: str, request: str | None = None, **arguments: Any) -> ToolResult:
        with await self.world.manager.call(REF) as runner:
            context = ToolContext(REF, runner, self.world.memory, self.world.manager, request)
            return await TOOLBOX.call(tool, arguments, context)

    def files(self) -> list[str]:
        """Return what is in the workspace, except the mirror's mount point."""
        return [path.name for path in self.world.workspace(REF.session, REF.tenant).iterdir() if path.name != "memo"]

    async def text(self, path: str) -> str | None:
        key = key_at(path, REF, USER)
        assert isinstance(key, DocumentKey)
        document = await self.store.read_document(key)
        return None if document is None else str(document.content)

    async def write(self, path: str, text: str) -> None:
        """Write as another author."""
        key = key_at(path, REF, USER)
        assert isinstance(key, DocumentKey)
        await self.world.memory.write(key, text, author=Author("another"))


@pytest.fixture
async def desk(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    async with memo.open_store("memory://") as store:
        stopping = StoppingStore(store, tmp_path / "stopped")
        async with open_world(tmp_path, store=stopping, outbox=not hasattr(request, "param")) as world:
            await world.create(REF.session, USER, REF.tenant)
            yield Desk(world, store)


# Specification: 001.58, 001.64
@pytest.mark.parametrize(
    "path",
    [NOTES, USER_MD, "/workspace/memo/session/any-Name.txt", "/workspace/memo/user/memories/projects/x.md"],
)
async def test_write_and_edit_go_to_the_store_and_not_to_the_container(desk: Desk, path: str) -> None:
    result = await desk.call("Write", file_path=path, contents="häl\n")
    assert (result.ok, result.details["revision"]) == (True, 1)
    result = await desk.call("Edit", file_path=path, old_string="häl", new_string="heil")
    assert (result.ok, result.details["revision"], result.content) == (True, 2, f"Replaced once in {path}.")
    assert await desk.text(path) == "heil\n"
    assert desk.files() == []
    key = key_at(path, REF, USER)
    history = await desk.world.memory.history(key)  # type: ignore[arg-type]
    assert [(one.actor, one.session, one.reason) for one in history] == [
        ("agent", "s", "Edit"),
        ("agent", "s", "Write"),
    ]


async def test_a_conflict_changes_nothing_and_shows_the_newer_text(desk: Desk) -> None:
    for tool, arguments in [
        ("Write", {"file_path": NOTES, "contents": "mine"}),
        ("Edit", {"file_path": NOTES, "old_string": "one", "new_string": "mine"}),
        ("write_notes", {"content": "mine", "mode": "replace"}),
    ]:
        await desk.write(NOTES, "one")
        assert "one" in (await desk.call("Read", file_path=NOTES)).content
        await desk.write(NOTES, "two, newer")
        result = await desk.call(tool, **arguments)
        assert result.ok is False
        assert "Nothing was changed" in result.content
        assert result.content.endswith("two, newer")
        assert result.details["code"] == "memo.conflict"
        assert await desk.text(NOTES) == "two, newer"


async def test_a_write_based_on_a_deleted_text_is_refused_once_and_never_brings_it_back_silently(desk: Desk) -> None:
    path = "/workspace/memo/session/memories/x.md"
    key = key_at(path, REF, USER)
    assert isinstance(key, DocumentKey)
    await desk.call("Write", file_path=path, contents="mine")
    await desk.world.memory.delete(key, author=Author("another"))
    assert (await desk.call("Read", file_path=path)).ok is False
    assert (await desk.call("Edit", file_path=path, old_string="mine", new_string="ours")).ok is False
    refused = await desk.call("Write", file_path=path, contents="mine again")
    assert (refused.ok, refused.details["code"]) == (False, "memo.conflict")
    assert "it was deleted since this session last read it. Nothing was changed." in refused.content
    assert await desk.text(path) is None
    again = await desk.call("Write", file_path=path, contents="mine again")
    assert (again.ok, again.details["revision"]) == (True, 3)


async def test_a_name_that_is_taken_is_a_result_that_says_so(desk: Desk) -> None:
    await desk.call("Write", file_path="/workspace/memo/session/memories/x.md", contents="x")
    result = await desk.call("Write", file_path="/workspace/memo/session/memories", contents="y")
    assert (result.ok, result.details["code"]) == (False, "memo.name_taken")
    assert "memories/x.md exists, so memories is a directory; choose another name" in result.content


async def test_a_file_that_the_session_never_read_is_written_only_if_it_does_not_exist(desk: Desk) -> None:
    await desk.write(NOTES, "theirs")
    result = await desk.call("Write", file_path=NOTES, contents="mine")
    assert (result.ok, "theirs" in result.content) == (False, True)
    assert await desk.text(NOTES) == "theirs"


async def test_a_long_newer_text_is_cut_for_the_model_and_does_not_count_as_seen(desk: Desk) -> None:
    await desk.write(NOTES, "x" * (MODEL_CHARS * 2))
    for _ in range(2):
        result = await desk.call("Write", file_path=NOTES, contents="mine")
        assert result.ok is False
        assert len(result.content) < MODEL_CHARS + 1000
        assert result.details["truncated"] is True


async def test_edit_of_a_document_follows_the_rules_for_files(desk: Desk) -> None:
    await desk.write(NOTES, "a a")
    for old, new, why in [
        ("b", "c", "not in the file"),
        ("a", "b", "2 matches"),
        ("", "b", "empty"),
        ("a", "a", "equals"),
    ]:
        result = await desk.call("Edit", file_path=NOTES, old_string=old, new_string=new)
        assert (result.ok, why in result.content) == (False, True)
    result = await desk.call("Edit", file_path=NOTES, old_string="a", new_string="b", replace_all=True)
    assert (result.ok, result.content) == (True, f"Replaced 2 times in {NOTES}.")
    result = await desk.call("Edit", file_path=TODO, old_string="a", new_string="b")
    assert (result.ok, result.details["code"]) == (False, "request.not_found")


# Specification: 001.67
async def test_an_artifact_is_written_and_edited_in_the_store(desk: Desk) -> None:
    path = "/workspace/memo/session/tool-results/call-1.txt"
    result = await desk.call("Write", file_path=path, contents="full text")
    assert (result.ok, result.details["revision"]) == (True, 1)
    key = ArtifactKey.of(REF, "call-1")
    assert await desk.store.read_tool_result_artifact(REF, key.tool_call) == "full text"
    result = await desk.call("Edit", file_path=path, old_string="full", new_string="whole")
    assert (result.ok, result.details["revision"]) == (True, 2)
    assert await desk.store.read_tool_result_artifact(REF, key.tool_call) == "whole text"
    await desk.store.write_artifact(key, "another program's")
    for tool, arguments in (("Write", {"contents": "x"}), ("Edit", {"old_string": "whole", "new_string": "x"})):
        result = await desk.call(tool, file_path=path, **arguments)
        assert (result.ok, result.details["code"]) == (False, "memo.conflict")
        assert "another program's" in result.content
    assert await desk.store.read_tool_result_artifact(REF, key.tool_call) == "another program's"


async def test_a_completed_call_is_not_carried_out_again(desk: Desk) -> None:
    """Not even after a restart: the store recognises the call by its id."""
    await desk.write(NOTES, "one\n")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("Edit", {"file_path": NOTES, "old_string": "one", "new_string": "one and one"}),
        ("write_notes", {"content": "three"}),
        ("write_todo", {"todos": [{"id": "a", "content": "build"}], "merge": True}),
        ("Write", {"file_path": USER_MD, "contents": "brief"}),
    ]
    for number, (tool, arguments) in enumerate(calls):
        found = TOOLBOX[tool]
        assert found.writes_memory(found.arguments.model_validate(arguments))
        results = [await desk.call(tool, f"call {number}", **arguments) for _ in range(3)]
        assert [result.ok for result in results] == [True] * 3
        assert len({result.details["revision"] for result in results}) == 1
    assert await desk.text(NOTES) == "one and one\nthree\n"


@pytest.mark.parametrize(
    "path",
    [
        "/workspace/memo",
        "/workspace/memo/NOTES.md",
        "/workspace/memo/session",
        "/workspace/memo/session/trace/x.md",
        "/workspace/memo/session/NOTES.md/x.md",
        "/workspace/memo/session/a/b/c/d/e/f/g/h/i",
        "/workspace/memo/session/.hidden",
        "/workspace/memo/session/tool-results",
        "/workspace/memo/session/tool-results/x",
        "/workspace/memo/session/tool-results/.txt",
        "/workspace/memo/user/tool-results/x.txt",
        "/workspace/memo/other/NOTES.md",
        "/workspace/memo/.manifest.json",
        "/workspace/x/../memo/session/a b",
    ],
)
async def test_an_illegal_memo_path_is_refused_clearly(desk: Desk, path: str) -> None:
    for tool, arguments in [("Write", {"contents": "x"}), ("Edit", {"old_string": "a", "new_string": "b"})]:
        result = await desk.call(tool, file_path=path, **arguments)
        assert (result.ok, result.details["code"]) == (False, "memo.invalid_key")
        assert result.content.startswith("cannot use this")
    assert desk.files() == []


# Specification: 001.65
async def test_notes_are_appended_line_by_line_or_replaced(desk: Desk) -> None:
    assert (await desk.call("write_notes", content="one")).ok
    assert (await desk.call("write_notes", content="two\n", mode="append")).ok
    assert await desk.text(NOTES) == "one\ntwo\n"
    result = await desk.call("write_notes", content="all new", mode="replace")
    assert (result.ok, await desk.text(NOTES)) == (True, "all new")


async def test_a_write_to_an_unavailable_store_is_queued(desk: Desk) -> None:
    (desk.world.directory / "stopped").touch()
    result = await desk.call("write_notes", content="one")
    assert (result.ok, result.details["queued"], "queued" in result.content) == (True, True, True)


@pytest.mark.parametrize("desk", ["without an outbox"], indirect=True)
async def test_a_write_to_an_unavailable_store_is_refused_without_an_outbox(desk: Desk) -> None:
    (desk.world.directory / "stopped").touch()
    result = await desk.call("write_notes", content="one")
    assert (result.ok, result.details["code"]) == (False, "store.unavailable")


async def test_without_a_store_a_tool_says_so(desk: Desk) -> None:
    found = TOOLBOX["write_notes"]
    with await desk.world.manager.call(REF) as runner:
        context = ToolContext(REF, runner)
        result = await run_tool(found, context, found.arguments.model_validate({"content": "x"}))
    assert (result.ok, result.details["code"]) == (False, "store.unavailable")


async def test_an_edit_of_memory_shows_the_nearest_lines(desk: Desk) -> None:
    await desk.write(NOTES, "# Notes\n\n- likes green tea\n- likes tea\n- likes tea\n")
    result = await desk.call("Edit", file_path=NOTES, old_string="-  likes green tea", new_string="x")
    assert (result.ok, "Only whitespace differs" in result.content) == (False, True)
    assert "     3\t- likes green tea" in result.content
    result = await desk.call("Edit", file_path=NOTES, old_string="- likes tea", new_string="x")
    assert "found 2 matches, on lines 4, 5;" in result.content


async def test_edit_with_an_empty_old_string_creates_a_document(desk: Desk) -> None:
    assert (await desk.call("Edit", file_path=NOTES, old_string="", new_string="new\n")).ok
    assert await desk.text(NOTES) == "new\n"
    result = await desk.call("Edit", file_path=NOTES, old_string="", new_string="newer\n")
    assert (result.ok, "not empty" in result.content) == (False, True)
    assert await desk.text(NOTES) == "new\n"


async def test_a_text_that_the_store_refuses_is_a_result(desk: Desk) -> None:
    result = await desk.call("Write", file_path=NOTES, contents="x" * 1_048_577)
    assert (result.ok, result.details["code"]) == (False, "memo.too_large")
    result = await desk.call("Write", file_path=NOTES, contents="\ud800")
    assert (result.ok, result.details["code"]) == (False, "request.invalid")


# Specification: 001.65
async def test_a_todo_list_is_written_and_merged_by_id(desk: Desk) -> None:
    todos = [
        {"id": "1", "content": "plan", "status": "completed"},
        {"id": "2", "content": "build\nwith care", "status": "in_progress"},
        {"id": "3", "content": "rest", "status": "pending"},
    ]
    result = await desk.call("write_todo", todos=todos)
    assert (result.ok, result.content) == (True, f"Wrote 3 items to {TODO}.")
    assert await desk.text(TODO) == ("# TODO\n\n- [x] (1) plan\n- [~] (2) build\n  with care\n- [ ] (3) rest\n")
    await desk.write(TODO, f"{await desk.text(TODO)}\nby hand\n")
    result = await desk.call(
        "write_todo", merge=True, todos=[{"id": "2", "status": "completed"}, {"id": "4", "content": "new"}]
    )
    assert result.ok
    assert await desk.text(TODO) == (
        "# TODO\n\n- [x] (1) plan\n- [x] (2) build\n  with care\n- [ ] (3) rest\n\nby hand\n- [ ] (4) new\n"
    )
    result = await desk.call("write_todo", merge=True, todos=[{"id": "9", "status": "completed"}])
    assert (result.ok, "no such item" in result.content) == (False, True)
    await desk.write(TODO, "# TODO\n\n- [ ] (1) changed by another\n")
    result = await desk.call("write_todo", merge=True, todos=[{"id": "1", "content": "other"}])
    assert (result.ok, "changed by another" in result.content) == (False, True)
    assert (await desk.call("write_todo", merge=True, todos=[{"id": "1", "content": "other"}])).ok


async def test_a_merge_without_a_list_creates_one(desk: Desk) -> None:
    assert (await desk.call("write_todo", merge=True, todos=[{"id": "a", "content": "x"}])).ok
    assert await desk.text(TODO) == "# TODO\n\n- [ ] (a) x\n"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("write_notes", {}),
        ("write_notes", {"content": ""}),
        ("write_notes", {"content": "a\0"}),
        ("write_notes", {"content": "a", "mode": "prepend"}),
        ("write_todo", {}),
        ("write_todo", {"todos": [{"id": "", "content": "x"}]}),
        ("write_todo", {"todos": [{"id": "a b", "content": "x"}]}),
        ("write_todo", {"todos": [{"id": "a\n", "content": "x"}]}),
        ("write_todo", {"todos": [{"id": "a", "content": "x", "status": "someday"}]}),
        ("write_todo", {"todos": [{"id": "a", "content": "x"}, {"id": "a", "content": "y"}]}),
        ("write_todo", {"todos": [{"id": "a", "content": "x", "more": 1}]}),
    ],
    ids=ascii,
)
def test_wrong_arguments_are_refused(tool: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TOOLBOX[tool].arguments.model_validate(arguments)


IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,10}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=60)
ITEMS = st.lists(
    st.builds(ChecklistItem, IDS, TEXTS, st.sampled_from(TodoStatus)), unique_by=lambda item: item.id, max_size=8
)


@given(ITEMS)
def test_a_list_is_read_back_exactly(items: list[ChecklistItem]) -> None:
    assert [part for part in parse_list(render_items(items)) if isinstance(part, ChecklistItem)] == items


@given(ITEMS, ITEMS, TEXTS)
def test_a_merge_keeps_items_it_does_not_name(
    before: list[ChecklistItem], updates: list[ChecklistItem], words: str
) -> None:
    own = [f"> {line}" for line in words.split("\n")]
    text = render_items(before) + "\n".join(own) + "\n"
    merged = parse_list(merge_items(text, [(one.id, one.content, one.status) for one in updates]))
    after = {part.id: part for part in merged if isinstance(part, ChecklistItem)}
    assert after == {one.id: one for one in [*before, *updates]}
    assert [part for part in merged if isinstance(part, str)][2:] == own
