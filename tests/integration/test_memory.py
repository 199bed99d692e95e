"""Memory in live containers: every write reaches every mirror, and unseen text is never overwritten."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest

from memo.errors import Absent, RevisionConflict
from sandboxd.client import Client
from sandboxd.errors import NotFound
from tests.faults.test_memory_killed import NOTES, USER, inside
from tests.running import RunningDaemon

pytestmark = [pytest.mark.engine]


@pytest.fixture
def user() -> str:
    return f"user-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def session(client: Client, user: str) -> Iterator[str]:
    name = f"session-{uuid.uuid4().hex[:8]}"
    client.ensure_sandbox(name, user=user)
    yield name
    client.destroy_sandbox(name)


def test_memory_written_before_the_sandbox_is_there_when_it_starts(client: Client, user: str) -> None:
    name = f"session-{uuid.uuid4().hex[:8]}"
    client.write_memo(name, "NOTES.md", "from before\n")
    client.write_memo(user, "USER.md", "about them\n", scope="user")
    client.write_artifact(name, "call-1", "a long tool result\n")
    client.ensure_sandbox(name, user=user)
    try:
        assert inside(client, name, NOTES) == "from before\n"
        assert inside(client, name, USER) == "about them\n"
        assert inside(client, name, "/workspace/memo/session/tool-results/call-1.txt") == "a long tool result\n"
    finally:
        client.destroy_sandbox(name)


def test_a_users_memory_changes_in_all_their_sandboxes_and_in_no_other(client: Client, user: str, session: str) -> None:
    second, foreign = f"{session}-2", f"{session}-3"
    client.ensure_sandbox(second, user=user)
    client.ensure_sandbox(foreign, user="somebody-else")
    try:
        answer = client.tool(session, "Write", {"file_path": USER, "contents": "likes tea\n"})
        assert answer.ok, answer.content
        assert [inside(client, name, USER) for name in (session, second)] == ["likes tea\n"] * 2
        assert inside(client, foreign, USER) == ""
    finally:
        client.destroy_sandbox(second)
        client.destroy_sandbox(foreign)


def test_an_edit_of_text_that_has_changed_is_refused_with_the_newer_text(client: Client, session: str) -> None:
    client.write_memo(session, "NOTES.md", "one\n")
    first = client.read_memo(session, "NOTES.md")
    client.write_memo(session, "NOTES.md", "two\n")
    with pytest.raises(RevisionConflict) as caught:
        client.write_memo(session, "NOTES.md", "mine\n", expected=first.revision)
    assert "revision 2" in str(caught.value)
    assert client.read_memo(session, "NOTES.md").text == "two\n"
    assert inside(client, session, NOTES) == "two\n"


def test_a_reader_inside_never_sees_half_a_document_or_an_older_one(
    daemon: RunningDaemon, client: Client, session: str
) -> None:
    """Each text is one number on 2,000 lines, so a torn or older text is detected at once. (I3)"""
    watch = f"""
import time
seen, end = 0, time.monotonic() + 8
while time.monotonic() < end:
    try:
        lines = open("{NOTES}").read().split()
    except FileNotFoundError:
        continue
    numbers = set(lines)
    assert len(lines) == 2000 and len(numbers) == 1, (len(lines), numbers)
    number = int(numbers.pop())
    assert number >= seen, (number, seen)
    seen = number
print(seen)
"""
    results: list[str] = []

    def read() -> None:
        with daemon.client() as other:
            done = other.exec(session, ["python3", "-c", watch], timeout_s=60)
            results.append(done.stdout + done.stderr)

    reader = threading.Thread(target=read)
    reader.start()
    number = 0
    while reader.is_alive():
        number += 1
        client.write_memo(session, "NOTES.md", f"{number}\n" * 2000)
    reader.join()
    assert results[0].strip().isdigit(), results
    assert int(results[0]) > 0
    assert inside(client, session, NOTES).split()[0] == str(number)


def test_another_tenant_sees_none_of_the_memory(client: Client, session: str) -> None:
    client.write_memo(session, "NOTES.md", "secret\n")
    with pytest.raises(Absent):
        client.read_memo(session, "NOTES.md", tenant="other")
    with pytest.raises(NotFound):
        client.list_memo(session, tenant="other")
