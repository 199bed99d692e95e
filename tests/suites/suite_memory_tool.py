"""Anthropic's memory tool: ours must answer like the SDK's own tool over files.

Every case is a list of tool calls as the model makes them. Both tools get it; the answers, errors included, and what
is kept afterwards must be equal. The sizes of directories are not compared: those are the file system's.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from anthropic.lib.tools import BetaAbstractMemoryTool, ToolError
from anthropic.tools.memory import BetaLocalFilesystemMemoryTool

from sandboxd.client import AsyncClient, Client
from sandboxd.integrations.anthropic_memory import AsyncSandboxdMemoryTool, SandboxdMemoryTool

Call = dict[str, Any]


def create(path: str, text: str = "content") -> Call:
    return {"command": "create", "path": path, "file_text": text}


def view(path: str, **more: Any) -> Call:
    return {"command": "view", "path": path, **more}


def replace(path: str, old: str, new: str) -> Call:
    return {"command": "str_replace", "path": path, "old_str": old, "new_str": new}


def insert(path: str, line: int, text: str) -> Call:
    return {"command": "insert", "path": path, "insert_line": line, "insert_text": text}


def delete(path: str) -> Call:
    return {"command": "delete", "path": path}


def rename(old: str, new: str) -> Call:
    return {"command": "rename", "old_path": old, "new_path": new}


F = "/memories/file.txt"
FIVE = "Line 1\nLine 2\nLine 3\nLine 4\nLine 5"
CRLF = "line1\r\nline2\r\nline3\r\n"

ANSWERED = {
    "a file is created": [create(F, "Hello, World!")],
    "a file is never created twice": [create(F, "first"), create(F, "second")],
    "a file is viewed with line numbers": [create(F, FIVE), view(F)],
    "an empty file is viewed": [create(F, ""), view(F)],
    "a part of a file is viewed": [create(F, FIVE), view(F, view_range=[2, 4])],
    "the rest of a file is viewed": [create(F, FIVE), view(F, view_range=[4, -1])],
    "a range past the end shows what there is": [create(F, FIVE), view(F, view_range=[4, 99])],
    "a missing file is not viewed": [view("/memories/missing.txt")],
    "the root is listed": [create("/memories/b.txt", "bb"), create("/memories/a.txt", "a" * 2000), view("/memories")],
    "an empty root is listed": [view("/memories")],
    "a text is replaced": [create(F, "Line 1\nOld Text\nLine 3"), replace(F, "Old Text", "New Text"), view(F)],
    "a replacement shows its surroundings": [create(F, FIVE), replace(F, "Line 4", "New\nLines")],
    "a text that is not there is not replaced": [create(F, "Hello"), replace(F, "Bye", "x"), view(F)],
    "a text that is there twice is not replaced": [
        create(F, "Hello\nMiddle\nHello"),
        replace(F, "Hello", "x"),
        view(F),
    ],
    "nothing is replaced in a missing file": [replace("/memories/missing.txt", "a", "b")],
    "a line is inserted in the middle": [create(F, "1\n2"), insert(F, 1, "inserted"), view(F)],
    "a line is inserted at the start": [create(F, "1\n2"), insert(F, 0, "inserted\n"), view(F)],
    "a line is inserted at the end": [create(F, "1\n2"), insert(F, 2, "inserted"), view(F)],
    "a line is inserted into an empty file": [create(F, ""), insert(F, 0, "inserted"), view(F)],
    "a line beyond the end is refused": [create(F, "1\n2"), insert(F, 10, "x"), view(F)],
    "a line before the start is refused": [create(F, "1\n2"), insert(F, -1, "x"), view(F)],
    "nothing is inserted into a missing file": [insert("/memories/missing.txt", 0, "x")],
    "carriage returns survive a view": [create(F, CRLF), view(F)],
    "carriage returns survive a replacement": [create(F, CRLF), replace(F, "line2", "LINE2"), view(F)],
    "carriage returns survive an insertion": [create(F, CRLF), insert(F, 1, "inserted"), view(F)],
    "letters of every script survive": [create(F, "naïve ☃ 世界 😀"), replace(F, "世界", "мир"), view(F)],
    "a missing file is not deleted": [delete("/memories/missing.txt")],
    "the root is not deleted": [delete("/memories")],
    "a missing file is not renamed": [rename("/memories/missing.txt", "/memories/new.txt")],
    "the root is not renamed": [rename("/memories", "/memories/new")],
    "a file is not renamed onto another": [create(F), create("/memories/b.txt"), rename(F, "/memories/b.txt")],
    "a path outside is refused": [create("/elsewhere/file.txt")],
    "a path that climbs out is refused": [create("/memories/../../../etc/passwd")],
    "a path that climbs and comes back is the same file": [create("/memories/x/../file.txt"), view(F)],
    "a file of a million lines is too long to view": [create(F, "\n".join(["line"] * 1_000_000)), view(F)],
    "a file in a directory is created": [create("/memories/deep/nested/file.txt")],
    "a directory is viewed": [create("/memories/d/1.txt"), create("/memories/d/2.txt"), view("/memories/d")],
    "two levels are listed": [create("/memories/a/b/c.txt"), create(F), view("/memories")],
    "a file is deleted": [create(F), delete(F), view(F)],
    "a deleted file is created again": [create(F, "old"), delete(F), create(F, "new"), view(F)],
    "a directory is deleted": [create("/memories/d/1.txt"), delete("/memories/d")],
    "a file is renamed": [create(F), rename(F, "/memories/new.txt"), view("/memories/new.txt")],
    "a file is moved into a directory": [create(F), rename(F, "/memories/d/file.txt")],
    "a directory is renamed": [
        create("/memories/d/1.txt"),
        create("/memories/d/e/2.txt"),
        rename("/memories/d", "/memories/new"),
        view("/memories/new/e/2.txt"),
    ],
    "a directory is listed before what only begins like it": [
        create("/memories/a.txt"),
        create("/memories/a/b.txt"),
        create("/memories/a-b/c/d.txt"),
        view("/memories"),
        replace("/memories/a", "x", "y"),
    ],
}

CASES = [pytest.param(calls, id=name) for name, calls in ANSWERED.items()]


@pytest.fixture
def user(client: Client) -> str:
    return f"user-{uuid.uuid4().hex}"


def answers(tool: BetaAbstractMemoryTool, calls: list[Call]) -> list[str]:
    return [_answer(tool, call) for call in calls]


def _answer(tool: BetaAbstractMemoryTool, call: Call) -> str:
    try:
        return _comparable(str(tool.call(call)))
    except ToolError as error:
        return f"error: {error}"


def _comparable(answer: str) -> str:
    return re.sub(r"^[0-9.]+[BKMG]\t(/memories(?:\S*(?<!\.txt))?)$", r"\1", answer, flags=re.MULTILINE)


@pytest.mark.parametrize("calls", CASES)
def test_the_tool_answers_like_the_sdk_s_own_over_files(
    client: Client, user: str, tmp_path: Path, calls: list[Call]
) -> None:
    theirs = BetaLocalFilesystemMemoryTool(str(tmp_path))
    ours = SandboxdMemoryTool(client, user)

    assert answers(ours, calls) == answers(theirs, calls)

    files = {path.relative_to(theirs.memory_root).as_posix(): path.read_bytes().decode() for path in _files(tmp_path)}
    documents = [document.name for document in client.list_memo(user, scope="user")]
    assert {name: client.read_memo(user, name, scope="user").text for name in documents} == files


SHORT = {name: calls for name, calls in ANSWERED.items() if len(str(calls)) < 100_000}


@pytest.mark.parametrize("calls", SHORT.values(), ids=SHORT.keys())
async def test_the_async_tool_answers_like_the_other(client: Client, user: str, calls: list[Call]) -> None:
    async with AsyncClient() as async_client:
        tool = AsyncSandboxdMemoryTool(async_client, user)
        answered = [await _async_answer(tool, call) for call in calls]
    assert answered == answers(SandboxdMemoryTool(client, f"{user}-2"), calls)


async def _async_answer(tool: AsyncSandboxdMemoryTool, call: Call) -> str:
    try:
        return _comparable(str(await tool.call(call)))
    except ToolError as error:
        return f"error: {error}"


MISTAKES: dict[str, tuple[object, str]] = {
    "no object": ("view", "command must be one of view, create"),
    "no command": ({}, "command must be one of view, create"),
    "an unknown command": ({"command": "append", "path": F}, "command must be one of view, create"),
    "a missing path": ({"command": "view"}, "path is missing. view takes path"),
    "a missing text": ({"command": "create", "path": F}, "file_text is missing"),
    "a range of words": (view(F, view_range=["a", "b"]), "view_range is invalid"),
    "a line that is a word": (insert(F, "first", "x"), "insert_line is invalid"),  # type: ignore[arg-type]
    "half a character": (create("/memories/b.txt", "\ud83d"), "half of a surrogate pair"),
    "a path outside": (create("/etc/passwd"), "must start with /memories"),
    "a path that climbs": (create("/memories/../x"), "would escape /memories"),
    "a name with a space": (create("/memories/my notes.md"), "1 to 8 segments"),
    "a hidden name": (create("/memories/.notes"), "start with a letter"),
    "a reserved name": (create("/memories/trace/a"), "trace is reserved"),
    "a file for a directory": (create(f"{F}/more"), "cannot also be a directory"),
    "a directory for a file": (create("/memories/dir"), "so dir is a directory"),
    "a rename below a file": (rename("/memories/dir/a.txt", f"{F}/a.txt"), "cannot also be a directory"),
}


@pytest.mark.parametrize(("call", "says"), MISTAKES.values(), ids=MISTAKES.keys())
async def test_a_model_is_told_what_to_do(client: Client, user: str, call: Call, says: str) -> None:
    tool = SandboxdMemoryTool(client, user)
    for made in (create(F), create("/memories/dir/a.txt")):
        tool.call(made)
    with pytest.raises(ToolError, match=re.escape(says)):
        tool.call(call)
    async with AsyncClient() as async_client:
        with pytest.raises(ToolError, match=re.escape(says)):
            await AsyncSandboxdMemoryTool(async_client, user).call(call)
    assert [(one.name, one.revision) for one in client.list_memo(user, scope="user")] == [
        ("dir/a.txt", 1),
        ("file.txt", 1),
    ]


def test_a_text_that_is_there_often_is_refused_with_its_first_lines(client: Client, user: str) -> None:
    tool = SandboxdMemoryTool(client, user)
    tool.call(create(F, "a\n" * 300_000))  # comparing each place with the whole text before it takes half a minute
    with pytest.raises(ToolError, match="99, 100 and more"):
        tool.call(replace(F, "a", "b"))


def test_every_change_is_attributed_and_can_be_restored(client: Client, user: str) -> None:
    tool = SandboxdMemoryTool(client, user, actor="support-bot")
    for call in (create(F, "one\n"), replace(F, "one", "two"), insert(F, 1, "three")):
        tool.call(call)
    history = client.memo_history(user, "file.txt", scope="user")
    assert [(one.actor, one.reason) for one in history] == [
        ("support-bot", "memory tool: insert"),
        ("support-bot", "memory tool: str_replace"),
        ("support-bot", "memory tool: create"),
    ]
    client.restore_memo(user, "file.txt", 1, scope="user")
    assert "one" in str(tool.call(view(F)))


def test_the_memory_of_a_session_is_its_own(client: Client, user: str) -> None:
    client.ensure_session(f"session-of-{user}", user)
    SandboxdMemoryTool(client, f"session-of-{user}", scope="session").call(create(F, "mine"))
    assert client.read_memo(f"session-of-{user}", "file.txt").text == "mine"
    assert client.list_memo(user, scope="user") == []


def test_a_concurrent_change_by_another_agent_is_never_overwritten(client: Client, user: str) -> None:
    tool = SandboxdMemoryTool(client, user)
    tool.call(create(F, "one"))
    seen = client.read_memo(user, "file.txt", scope="user")
    client.write_memo(user, "file.txt", "two", scope="user")
    with pytest.raises(ToolError, match="has changed since it was read"):
        tool._write(F, "three", seen, "str_replace")
    assert client.read_memo(user, "file.txt", scope="user").text == "two"


def test_a_change_is_seen_in_the_sandbox_of_the_user_at_once(client: Client, user: str) -> None:
    session = f"memory-{uuid.uuid4().hex}"
    client.ensure_sandbox(session, user)
    try:
        SandboxdMemoryTool(client, user).call(create(F, "remember this"))
        assert client.exec(session, ["cat", "/workspace/memo/user/file.txt"]).stdout == "remember this"
    finally:
        client.destroy_sandbox(session)


def _files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())
