"""langchain-tests: its standard suite for a sandbox of Deep Agents; memory as files, and a run of an agent."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend
from deepagents.backends.protocol import SandboxBackendProtocol
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import SandboxIntegrationTests

from sandboxd.client import Client
from sandboxd.integrations.deepagents import SandboxdBackend
from sandboxd.integrations.deepagents_memory import DocumentBackend


class TestSandboxdBackend(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self, client: Client, session: str) -> SandboxBackendProtocol:
        return SandboxdBackend(client, session)


@pytest.fixture
def user() -> str:
    return f"user-{uuid.uuid4().hex}"


@pytest.fixture
def backend(client: Client, session: str) -> SandboxdBackend:
    return SandboxdBackend(client, session)


@pytest.fixture
def memory(client: Client, user: str) -> DocumentBackend:
    return DocumentBackend(client, user)


def test_a_command_that_outlives_its_timeout_says_so(backend: SandboxdBackend) -> None:
    done = backend.execute("echo begun; sleep 30", timeout=1)
    assert (done.exit_code, done.output.split("\n")) == (124, ["begun", "", "[the command timed out and was killed]"])


def test_an_edit_keeps_carriage_returns_and_the_mode(backend: SandboxdBackend) -> None:
    path = f"/workspace/{uuid.uuid4().hex}.sh"
    backend.upload_files([(path, b"one\r\ntwo\r\n")])
    backend.execute(f"chmod 750 {path}")
    assert backend.edit(path, "one\ntwo", "one\nthree").occurrences == 1
    assert backend.download_files([path])[0].content == b"one\r\nthree\r\n"
    assert backend.execute(f"stat -c %a {path}").output == "750\n"


def test_a_file_is_read_no_further_than_its_page(backend: SandboxdBackend) -> None:
    path = f"/workspace/{uuid.uuid4().hex}.txt"
    backend.execute(f"seq 2000000 > {path}; printf '\\377' >> {path}")
    page = backend.read(path, offset=3, limit=2)
    assert page.file_data is not None
    assert page.file_data["content"] == "4\n5"
    cut = backend.read(path, offset=0, limit=2_000_000)
    assert cut.file_data is not None
    assert "Output was truncated" in cut.file_data["content"]
    assert len(cut.file_data["content"]) < 520_000


def test_a_file_under_memo_is_written_in_the_store(client: Client, session: str, backend: SandboxdBackend) -> None:
    path = "/workspace/memo/session/PLAN.md"
    assert backend.write(path, "one\ntwo\n").error is None
    assert backend.edit(path, "two", "three").occurrences == 1
    assert client.read_memo(session, "PLAN.md").text == "one\nthree\n"
    assert "already exists" in str(backend.write(path, "again").error)
    assert backend.upload_files([(path, b"raw")])[0].error == "permission_denied"


def test_memory_is_listed_read_searched_and_edited(client: Client, user: str, memory: DocumentBackend) -> None:
    assert memory.write("/notes.md", "one\ntwo\nthree\n").path == "/notes.md"
    assert "already exists" in str(memory.write("/notes.md", "again").error)
    assert memory.edit("/notes.md", "two", "2").occurrences == 1
    assert "not found" in str(memory.edit("/notes.md", "absent", "x").error)
    assert "not found" in str(memory.edit("/missing.md", "a", "b").error)
    for path in ("/../escape", "/notes.md/more", "/my notes.md"):
        assert "cannot" in str(memory.write(path, "x").error)
    page = memory.read("/notes.md", offset=1, limit=1)
    assert page.file_data is not None
    assert page.file_data["content"] == "2\n"
    assert memory.read("/missing.md").error == "File '/missing.md' not found"
    assert [(entry["path"], entry["size"]) for entry in memory.ls("/").entries or []] == [("/notes.md", 12)]
    assert [match["line"] for match in memory.grep("three").matches or []] == [3]
    assert [match["path"] for match in memory.glob("*.md").matches or []] == ["/notes.md"]
    assert memory.glob("*.txt").matches == []
    assert [response.error for response in memory.upload_files([("/raw", b"\xff"), ("/text", b"ok")])][1] is None
    assert [response.content for response in memory.download_files(["/text", "/raw"])] == [b"ok", None]
    history = client.memo_history(user, "notes.md", scope="user")
    assert [(one.actor, one.reason) for one in history] == [
        ("deepagents", "Deep Agents: edit_file"),
        ("deepagents", "Deep Agents: write_file"),
    ]


def test_memory_has_directories(memory: DocumentBackend) -> None:
    for path in ("/top.md", "/jobs/plan.md", "/jobs/done/old.md"):
        assert memory.write(path, path).error is None
    assert [entry["path"] for entry in memory.ls("/").entries or []] == ["/jobs/", "/top.md"]
    assert [entry["path"] for entry in memory.ls("/jobs").entries or []] == ["/jobs/done/", "/jobs/plan.md"]
    assert [match["path"] for match in memory.glob("**/*.md", "/jobs").matches or []] == [
        "/jobs/done/old.md",
        "/jobs/plan.md",
    ]
    assert [match["path"] for match in memory.grep("plan", "/jobs").matches or []] == ["/jobs/plan.md"]


class ScriptedChat(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **more: Any) -> Any:
        return self


def test_an_agent_works_in_its_sandbox_and_remembers(
    client: Client, session: str, user: str, backend: SandboxdBackend, memory: DocumentBackend
) -> None:
    calls = [
        ("execute", {"command": "echo 42 > answer.txt"}),
        ("read_file", {"file_path": "/workspace/answer.txt"}),
        ("write_file", {"file_path": "/memories/facts.md", "content": "the answer is 42"}),
    ]
    script = [
        AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call-{number}"}])
        for number, (name, arguments) in enumerate(calls)
    ]
    agent = create_deep_agent(
        model=ScriptedChat(messages=iter([*script, AIMessage("done")])),
        backend=CompositeBackend(default=backend, routes={"/memories/": memory}),
    )
    said = agent.invoke({"messages": [{"role": "user", "content": "find the answer"}]})["messages"]
    assert said[-1].content == "done"
    assert "42" in [message.content for message in said if message.type == "tool"][1]
    assert client.read_file(session, "/workspace/answer.txt") == b"42\n"
    assert client.read_memo(user, "facts.md", scope="user").text == "the answer is 42"
