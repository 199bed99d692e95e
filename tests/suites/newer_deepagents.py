"""Deep Agents 0.7 and its command line: the provider that its registry finds, and what 0.7 asks of a backend.

The command line excludes some of our packages, so this file runs in an environment of its own
(`tests/integration/test_extras.py`), with `make test-all`.
"""

from __future__ import annotations

import uuid

import pytest
from deepagents_code.integrations.sandbox_factory import create_sandbox
from deepagents_code.integrations.sandbox_provider import SandboxNotFoundError
from deepagents_code.integrations.sandbox_registry import SandboxRegistry

from sandboxd.client import Client
from sandboxd.errors import NotFound
from sandboxd.integrations.deepagents import SandboxdBackend
from sandboxd.integrations.deepagents_memory import DocumentBackend


def test_the_registry_finds_the_provider() -> None:
    found = SandboxRegistry.load().get_metadata("sandboxd")
    assert found is not None
    assert (found.name, found.working_dir, found.supports_sandbox_id) == ("sandboxd", "/workspace", True)


def test_a_new_sandbox_is_removed_at_the_end(client: Client) -> None:
    with create_sandbox("sandboxd", params={"user": "ada"}) as backend:
        assert backend.execute("pwd").output == "/workspace\n"
        assert client.get_sandbox(backend.id).user == "ada"
    with pytest.raises(NotFound):
        client.get_sandbox(backend.id)


def test_a_new_sandbox_begins_with_the_files_of_a_snapshot(client: Client, session: str) -> None:
    client.write_file(session, "/workspace/prepared.txt", "prepared")
    taken = client.take_snapshot(session)
    with create_sandbox("sandboxd", snapshot_name=taken.id, params={"user": "suites"}) as backend:
        assert backend.execute("cat prepared.txt").output == "prepared"


def test_the_sandbox_of_a_named_session_is_used_and_kept(client: Client, session: str) -> None:
    with create_sandbox("sandboxd", sandbox_id=session) as backend:
        assert backend.execute("echo here > mark").exit_code == 0
    assert client.read_file(session, "/workspace/mark") == b"here\n"


def test_a_session_that_does_not_exist_is_not_created() -> None:
    with pytest.raises(SandboxNotFoundError, match="sandboxd create none-of-these"):
        create_sandbox("sandboxd", sandbox_id="none-of-these").__enter__()


def test_a_write_replaces_a_file_but_no_document_unread(client: Client, session: str) -> None:
    backend = SandboxdBackend(client, session)
    for text in ("one\n", "two\n"):
        assert backend.write("/workspace/file.txt", text).error is None
    assert client.read_file(session, "/workspace/file.txt") == b"two\n"
    client.write_memo(session, "PLAN.md", "another's\n")
    assert "another's" in str(backend.write("/workspace/memo/session/PLAN.md", "mine\n").error)
    assert client.read_memo(session, "PLAN.md").text == "another's\n"


def test_a_page_of_a_file_says_where_to_go_on(client: Client, session: str) -> None:
    backend = SandboxdBackend(client, session)
    client.write_file(session, "/workspace/long.txt", "".join(f"{number}\n" for number in range(1, 11)))
    pages = [backend.read("/workspace/long.txt", offset, 4) for offset in (0, 4, 8, 6)]
    assert [(page.start_line, page.end_line, page.next_offset) for page in pages] == [
        (1, 4, 4),
        (5, 8, 8),
        (9, 10, None),
        (7, 10, None),
    ]
    client.write_file(session, "/workspace/wide.txt", f"short\n{'x' * 600_000}\nlast\n")
    cut = backend.read("/workspace/wide.txt")
    assert (cut.start_line, cut.end_line, cut.next_offset) == (1, 1, 1)
    alone = backend.read("/workspace/wide.txt", 1)
    assert (alone.start_line, alone.end_line, alone.next_offset) == (2, 2, 2)


def test_a_directory_of_memory_is_deleted_and_can_be_restored(client: Client) -> None:
    user = f"user-{uuid.uuid4().hex}"
    memory = DocumentBackend(client, user)
    for path in ("/keep.md", "/jobs/one.md", "/jobs/two.md"):
        assert memory.write(path, f"{path}\n").error is None
    assert memory.delete("/jobs").path == "/jobs"
    assert [entry["path"] for entry in memory.ls("/").entries or []] == ["/keep.md"]
    assert memory.delete("/jobs").error == "Error: File '/jobs' not found"
    client.restore_memo(user, "jobs/one.md", 1, scope="user")
    assert client.read_memo(user, "jobs/one.md", scope="user").text == "/jobs/one.md\n"
    assert client.memo_history(user, "jobs/two.md", scope="user")[0].actor == "deepagents"
