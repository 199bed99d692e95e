"""MCP against a real daemon and real containers: over stdio, over HTTP, and as the how-to says."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
import pytest
from mcp.client.client import Client as McpClient
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from sandboxd.client import Client
from tests.mcp_clients import DOORS, Door, details_of, text_of
from tests.model_mistakes import FILES, MISTAKES, prepare
from tests.running import RunningDaemon, free_port
from tests.tour import environment_of

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

HANG_S = 60
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "mcp.md"
EXAMPLES = sorted((ROOT / "examples" / "mcp").glob("*.json"))


TOKEN = secrets.token_hex(16)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    """A daemon that listens on TCP: anyio's unix sockets, which the SDK's client would use, report a cancelled read as
    an error now and then."""
    running = with_tcp(tmp_path_factory.mktemp("mcp"), agent_image)
    try:
        yield running.start()
        assert running.terminate() == 0  # I11
    finally:
        running.stop()


def with_tcp(directory: Path, image: str) -> RunningDaemon:
    token_file = directory / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    return RunningDaemon(image=image, tcp=f"127.0.0.1:{free_port()}", token_file=token_file)


@pytest.fixture
def session(client: Client) -> Iterator[str]:
    name = f"s-{secrets.token_hex(4)}"
    yield name
    client.destroy_sandbox(name, missing_ok=True)


@asynccontextmanager
async def connect(daemon: RunningDaemon, door: Door, session: str) -> AsyncIterator[McpClient]:
    if door == "stdio":
        words = ["-m", "sandboxd", "mcp", "--socket", str(daemon.socket), "--session", session, "--user", "ada"]
        async with McpClient(StdioServerParameters(command=sys.executable, args=words)) as client:
            yield client
        return
    url = f"http://{daemon.settings['tcp']}/mcp?session={session}&user=ada"
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}, timeout=HANG_S) as http,
        McpClient(streamable_http_client(url, http_client=http), mode="legacy") as client,
    ):
        yield client


@pytest.mark.parametrize("door", DOORS)
async def test_tools_memory_and_cancellation_work_in_a_container(
    daemon: RunningDaemon, client: Client, session: str, door: Door
) -> None:
    with anyio.fail_after(HANG_S):
        async with connect(daemon, door, session) as mcp:
            assert text_of(await mcp.call_tool("Bash", {"command": "id -un; pwd"})).endswith("/workspace")
            assert text_of(await mcp.call_tool("Python", {"code": "print(6 * 7)"})) == "42"
            await mcp.call_tool("memo_write", {"name": "NOTES.md", "content": "from a client\n"})
            shown = await mcp.call_tool("Bash", {"command": "cat /workspace/memo/session/NOTES.md"})
            assert text_of(shown) == "from a client"
            refused = await mcp.call_tool("Bash", {"command": "echo x > /workspace/memo/session/NOTES.md"})
            assert "Read-only file system" in text_of(refused)
            async with anyio.create_task_group() as tasks:

                async def stop(progress: float, total: float | None, message: str | None) -> None:
                    tasks.cancel_scope.cancel()

                tree = {"command": "echo begun; setsid sleep 4321 & sleep 4321"}
                await mcp.call_tool("Bash", tree, progress_callback=stop)
            while text_of(await mcp.call_tool("Bash", {"command": "pgrep -f '^sleep 4321' || true"})) != "[no output]":
                await anyio.sleep(0.05)
    assert client.memo_history(session, "NOTES.md")[0].actor == "mcp:mcp"
    assert client.get_sandbox(session).user == "ada"  # kept, with its files


@pytest.mark.parametrize("door", DOORS)
async def test_a_model_is_told_what_to_do_after_every_mistake_in_a_container(
    daemon: RunningDaemon, client: Client, session: str, door: Door
) -> None:
    def make_files() -> None:
        client.ensure_sandbox(session, "ada")
        prepare(client, session, "ada")

    await anyio.to_thread.run_sync(make_files)
    async with connect(daemon, door, session) as mcp:
        for mistake in MISTAKES:
            if mistake.kind == "half a character":  # which this client cannot send
                continue
            result = await mcp.call_tool(mistake.tool, dict(mistake.arguments))
            mistake.check(not result.is_error, text_of(result), details_of(result))
    assert {path: client.read_file(session, path) for path in FILES} == FILES


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
async def test_the_configuration_of_an_editor_starts_a_server(
    daemon: RunningDaemon, client: Client, example: Path
) -> None:
    [servers] = json.loads(example.read_text()).values()
    server = servers["sandbox"]
    words = ["-m", server["command"], *server["args"], "--socket", str(daemon.socket)]
    with anyio.fail_after(HANG_S):
        async with McpClient(StdioServerParameters(command=sys.executable, args=words)) as mcp:
            assert text_of(await mcp.call_tool("Bash", {"command": "id -un"})) == "agent"
    client.destroy_sandbox("editor")


async def test_a_daemon_with_open_connections_drains_and_exits_with_0(
    tmp_path: Path, engine_socket: str, agent_image: str
) -> None:
    running = with_tcp(tmp_path, agent_image)
    try:
        running.start()
        async with connect(running, "http", "s1") as mcp:
            assert (await mcp.list_tools()).tools
            assert await anyio.to_thread.run_sync(running.terminate) == 0  # I11
    finally:
        running.stop()


def test_the_python_of_the_how_to_prints_what_the_page_says(daemon: RunningDaemon, client: Client) -> None:
    page = PAGE.read_text()
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    # the daemon of this test, and a tenant that no other page uses
    source = source.replace('["mcp", ', f'["mcp", "--socket", "{daemon.socket}", "--tenant", "mcp-page", ')
    done = subprocess.run(
        [sys.executable, "-c", source],
        env=environment_of(daemon),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    client.destroy_sandbox("research", missing_ok=True, tenant="mcp-page")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["hello from the sandbox", "memo://user/USER.md"]
    assert [set(json.loads(block)) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)] == [
        {"mcpServers"}
    ] * 2
