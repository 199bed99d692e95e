"""Several frameworks on one user's memory: each sees what the others write, in one history that names them all."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import pytest
from anthropic.types.beta import BetaMemoryTool20250818StrReplaceCommand, BetaMemoryTool20250818ViewCommand

from sandboxd.client import Client
from sandboxd.integrations.anthropic_memory import SandboxdMemoryTool
from sandboxd.integrations.deepagents_memory import DocumentBackend


class McpAgent:
    """An MCP client on the pipes of `sandboxd mcp`, as an editor starts it. The SDK is not in this environment."""

    def __init__(self, session: str, user: str) -> None:
        command = [os.environ["SANDBOXD_TEST_PYTHON"], "-m", "sandboxd", "mcp", "--session", session, "--user", user]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._last = 0

    def __enter__(self) -> Self:
        started = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "editor", "version": "1"},
        }
        self._ask("initialize", started)
        self._send({"method": "notifications/initialized"})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def call(self, tool: str, **arguments: Any) -> str:
        """Call a tool, and return its text."""
        result = self._ask("tools/call", {"name": tool, "arguments": arguments})
        assert not result.get("isError"), result
        return str(result["content"][0]["text"])

    def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._last += 1
        self._send({"id": self._last, "method": method, "params": params})
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if message.get("id") == self._last:
                answer: dict[str, Any] = message["result"]
                return answer
        raise AssertionError("the MCP server has ended")

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._process.stdin.flush()


@pytest.fixture
def user() -> str:
    return f"user-{uuid.uuid4().hex}"


@pytest.fixture
def shared(client: Client, user: str) -> Iterator[str]:
    name = f"together-{uuid.uuid4().hex}"
    client.ensure_sandbox(name, user)
    yield name
    client.destroy_sandbox(name)


def test_what_one_framework_writes_all_others_see(client: Client, shared: str, user: str) -> None:
    memory_tool = SandboxdMemoryTool(client, user)
    deep = DocumentBackend(client, user)

    def seen() -> set[str]:
        """Return the text as each of them shows it, without what is only theirs."""
        view = BetaMemoryTool20250818ViewCommand(command="view", path="/memories/USER.md")
        shown = str(memory_tool.view(view)).splitlines()[1:]
        return {
            client.read_memo(user, "USER.md", scope="user").text,
            client.exec(shared, "cat /workspace/memo/user/USER.md").stdout,
            "\n".join(line.split("\t", 1)[1] for line in shown),
            str((deep.read("/USER.md").file_data or {}).get("content")),
        }

    with McpAgent(shared, user) as agent:
        agent.call("memo_append", scope="user", name="USER.md", content="likes tea\n")
        assert seen() == {"likes tea\n"}
        command = BetaMemoryTool20250818StrReplaceCommand(
            command="str_replace", path="/memories/USER.md", old_str="tea", new_str="coffee"
        )
        memory_tool.str_replace(command)
        assert seen() == {"likes coffee\n"}
        assert "likes coffee" in agent.call("memo_read", scope="user", name="USER.md")
        assert deep.edit("/USER.md", "coffee", "water").error is None
        assert seen() == {"likes water\n"}
        assert "likes water" in agent.call("Read", file_path="/workspace/memo/user/USER.md")
    history = client.memo_history(user, "USER.md", scope="user")
    assert [one.actor for one in history] == ["deepagents", "anthropic-memory", "mcp:editor"]
