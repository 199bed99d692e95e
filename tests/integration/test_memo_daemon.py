"""Memory through a real daemon into a real container: routes, tools, clients and commands, seen with `cat` inside."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator

import pytest

from memo.errors import Absent, InvalidKey, RevisionConflict
from sandboxd.client import Client
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine

MEMO = "/workspace/memo"
NOTES = f"{MEMO}/session/NOTES.md"
LIMITS = {"memory_mb": 128, "pids": 64, "disk_mb": 64}


@pytest.fixture
def user() -> str:
    return f"u-{secrets.token_hex(4)}"


@pytest.fixture
def session(client: Client, user: str) -> Iterator[str]:
    name = f"s-{secrets.token_hex(4)}"
    client.ensure_sandbox(name, user, limits=LIMITS)
    yield name
    client.destroy_sandbox(name)


def cat(client: Client, session: str, path: str) -> str:
    result = client.exec(session, ["cat", path])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def run(daemon: RunningDaemon, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "SANDBOXD_SOCKET": str(daemon.socket)}
    return subprocess.run(
        [sys.executable, "-m", "sandboxd", *words], input=stdin, capture_output=True, env=env, timeout=90, check=False
    )


# Specification: 001.69
def test_a_write_over_http_is_visible_inside_before_its_answer(client: Client, session: str) -> None:
    with pytest.raises(Absent):
        client.read_memo(session, "NOTES.md")
    assert client.write_memo(session, "NOTES.md", "häl\n", expected=0).revision == 1
    assert cat(client, session, NOTES) == "häl\n"
    client.append_memo(session, "NOTES.md", "more\n")
    assert cat(client, session, NOTES) == "häl\nmore\n"
    client.restore_memo(session, "NOTES.md", 1)
    assert cat(client, session, NOTES) == "häl\n"
    client.write_artifact(session, "call-1", "full")
    assert cat(client, session, f"{MEMO}/session/tool-results/call-1.txt") == "full"
    files = client.get_mirror(session)
    assert [file.in_sync for file in files] == [True, True]
    manifest = json.loads(cat(client, session, f"{MEMO}/.manifest.json"))
    assert "session/NOTES.md" in json.dumps(manifest)


def test_two_agents_of_one_user_do_not_overwrite_each_other(client: Client, session: str, user: str) -> None:
    """I13. The bug that it prevents: two agents read and write, both writes succeed, and a line is lost."""
    other = f"s-{secrets.token_hex(4)}"
    client.ensure_sandbox(other, user, limits=LIMITS)
    try:
        path = f"{MEMO}/user/USER.md"
        lines = [f"line {number}" for number in range(10)]
        client.tool(session, "Write", {"file_path": path, "contents": "\n".join(lines) + "\n"})
        for reader in (session, other):
            assert "line 9" in client.tool(reader, "Read", {"file_path": path}).content
        nuts = "\n".join(["allergic to nuts", *lines]) + "\n"
        assert client.tool(session, "Write", {"file_path": path, "contents": nuts}).ok
        oslo = "\n".join([*lines, "lives in Oslo"]) + "\n"
        merged = client.tool(other, "Write", {"file_path": path, "contents": oslo})
        assert (merged.ok, merged.details["merged"], "+allergic to nuts" in merged.content) == (True, True, True)
        for reader in (session, other):
            assert cat(client, reader, path) == f"{nuts}lives in Oslo\n"
        refused = client.tool(session, "Write", {"file_path": path, "contents": f"{nuts}lives in Bergen\n"})
        assert (refused.ok, refused.details["code"], "lives in Oslo" in refused.content) == (
            False,
            "memo.conflict",
            True,
        )
    finally:
        client.destroy_sandbox(other)


def test_every_tool_that_writes_memory_writes_the_store(client: Client, session: str, user: str) -> None:
    assert client.tool(session, "Write", {"file_path": NOTES, "contents": "one\n"}).ok
    edit = {"file_path": NOTES, "old_string": "one", "new_string": "two"}
    assert client.tool(session, "Edit", edit).ok
    assert client.tool(session, "write_notes", {"content": "three"}).ok
    assert client.read_memo(session, "NOTES.md").text == cat(client, session, NOTES) == "two\nthree\n"
    assert "two" in client.tool(session, "Read", {"file_path": NOTES}).content
    todos = [{"id": "a", "content": "build", "status": "in_progress"}]
    assert client.tool(session, "write_todo", {"todos": todos}).ok
    assert cat(client, session, f"{MEMO}/session/TODO.md") == "# TODO\n\n- [~] (a) build\n"
    assert client.tool(session, "Write", {"file_path": f"{MEMO}/user/USER.md", "contents": "brief"}).ok
    assert client.read_memo(user, "USER.md", scope="user").text == "brief"
    (revision,) = client.memo_history(user, "USER.md", scope="user")
    assert (revision.actor, revision.session) == ("agent", session)
    assert "Read-only file system" in client.exec(session, f"echo x > {NOTES}").stderr
    assert client.tool(session, "Write", {"file_path": f"{MEMO}/x/y", "contents": "x"}).ok is False


def test_a_stale_write_is_refused_with_the_newer_text(client: Client, session: str) -> None:
    client.write_memo(session, "NOTES.md", "one")
    client.write_memo(session, "NOTES.md", "two", expected=1)
    with pytest.raises(RevisionConflict) as lost:
        client.write_memo(session, "NOTES.md", "lost", expected=1)
    assert lost.value.current is not None
    assert (lost.value.current.content, lost.value.current.revision) == ("two", 2)
    assert cat(client, session, NOTES) == "two"


def test_compaction_reaches_the_container(client: Client, session: str, user: str) -> None:
    messages = [{"role": "user", "content": f"question {number}"} for number in range(6)]
    client.append_turn(session, messages, {"input": 10, "output": 5})
    assert (client.get_session(session).user, client.get_session(session).turns) == (user, 1)
    done = client.compact_session(session, force=True)
    assert (done.compacted, done.archived) == (True, 3)
    assert "- question 2" in cat(client, session, NOTES)
    assert client.load_messages(session, full=True) == messages
    result = {"role": "toolResult", "toolCallId": "c9", "content": "y" * 9000}
    short = client.compact_tool_results(session, [result], keep_recent=0, max_tokens=10)
    path = f"{MEMO}/session/tool-results/c9.txt"
    assert path in short.messages[0]["content"]
    assert cat(client, session, path) == "y" * 9000


def test_the_command_line_reads_and_writes_what_the_container_sees(
    daemon: RunningDaemon, client: Client, session: str, user: str
) -> None:
    assert run(daemon, "memo", "put", session, "NOTES.md", stdin=b"by hand\n").returncode == 0
    assert cat(client, session, NOTES) == "by hand\n"
    assert run(daemon, "memo", "append", "--user", user, "USER.md", stdin=b"brief\n").returncode == 0
    assert cat(client, session, f"{MEMO}/user/USER.md") == "brief\n"
    client.tool(session, "write_notes", {"content": "by an agent"})
    assert run(daemon, "memo", "cat", session, "NOTES.md").stdout == b"by hand\nby an agent\n"
    assert run(daemon, "refresh", session).returncode == 0
    client.append_messages(session, [{"role": "user", "content": "hi"}])
    assert session in run(daemon, "sessions", "--user", user).stdout.decode()


def test_a_retried_append_is_applied_once(client: Client, session: str) -> None:
    for _ in range(2):
        client.append_memo(session, "NOTES.md", "once\n", idempotency_key=f"k-{session}")
    assert cat(client, session, NOTES) == "once\n"


def test_events_about_memory_do_not_contain_its_text(client: Client, session: str) -> None:
    client.write_memo(session, "NOTES.md", "secret words")
    mine = [event for event in client.events(follow=False) if session in repr(event.fields)]
    assert "memo" in {event.kind for event in mine}
    assert "secret words" not in repr(mine)
    with pytest.raises(InvalidKey):
        client.write_memo(session, ".hidden", "x")
