"""The MCP server through the SDK's own client, over stdio and over HTTP, in both eras of the protocol."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import mcp_types as types
import pytest
from anyio.streams.text import TextReceiveStream
from mcp.client.client import Client as McpClient
from mcp.shared.exceptions import MCPError

from memo import open_store
from memo.documents import DocumentKey, DocumentName
from memo.ids import TenantId, UserId
from sandboxd.client import AsyncClient, Client
from sandboxd.tools import Toolbox
from tests.mcp_clients import DOORS, ERAS, Door, connect, details_of, text_of
from tests.model_mistakes import MISTAKES, prepare
from tests.world.serving import ServedWorld, serving

pytestmark = pytest.mark.anyio

HANG_S = 60
READ_ONLY = {"Glob", "Grep", "ProcessList", "ProcessOutput", "Read", "memo_history", "memo_list", "memo_read"}
MANAGE = {"sandbox_create", "sandbox_destroy", "sandbox_fork", "sandbox_snapshot"}
ACCEPT = {"accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bare", "version": "1"}},
}
SLEEP = {"command": "echo begun; sleep 600 & sleep 600"}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServedWorld]:
    async with open_store("memory://") as store, serving(tmp_path, store=store) as world:
        with anyio.fail_after(2 * HANG_S):
            yield world


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Door:
    found: Door = request.param
    return found


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def client(world: ServedWorld, door: Door, era: str) -> AsyncIterator[McpClient]:
    async with connect(door, world.url, world.token, era=era, tenant="acme", session="s1", user="ann") as client:
        yield client


async def test_tools_are_listed_with_schemas_and_hints_and_run_in_a_sandbox(
    client: McpClient, world: ServedWorld
) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert {*Toolbox.discover()} < tools.keys()
    assert all(tool.input_schema["type"] == "object" and tool.annotations for tool in tools.values())
    hinted = {name for name, tool in tools.items() if tool.annotations and tool.annotations.read_only_hint}
    assert hinted == READ_ONLY
    assert not MANAGE & tools.keys()
    assert world.running() == []  # nothing is started before it is needed
    result = await client.call_tool("Bash", {"command": "echo out; echo err >&2; exit 3"})
    assert (result.is_error, text_of(result)) == (True, "out\nerr\n[exit code 3]")
    assert details_of(result)["exit_code"] == 3
    result = await client.call_tool("Write", {"file_path": "a.txt", "content": "one\n"})
    assert not result.is_error, text_of(result)
    assert (world.workspace("s1") / "a.txt").read_text() == "one\n"


async def test_every_connection_has_its_own_session_unless_it_names_one(world: ServedWorld, door: Door) -> None:
    async with connect(door, world.url, world.token) as one, connect(door, world.url, world.token) as other:
        await one.call_tool("Write", {"file_path": "mine.txt", "content": "1"})
        found = await other.call_tool("Glob", {"pattern": "**/*.txt"})
        assert "mine.txt" not in text_of(found)
    async with AsyncClient(world.socket) as client:
        sessions = [view.session for view in await client.list_sandboxes()]
    assert len(sessions) == 2  # kept: their files were not asked to be removed
    assert all(name.startswith("mcp-") for name in sessions)
    async with connect(door, world.url, world.token, session=sessions[0]) as again:
        assert {view.user for view in world.manager.of_tenant("default")} == {"default"}  # type: ignore[arg-type]
        assert not (await again.call_tool("Bash", {"command": "true"})).is_error


async def test_a_client_without_a_handshake_and_a_session_is_sent_to_the_handshake(world: ServedWorld) -> None:
    async with connect("http", world.url, world.token, era="auto") as client:
        assert client.protocol_version < "2026"
        assert not (await client.call_tool("Bash", {"command": "true"})).is_error
    async with connect("http", world.url, world.token, era="2026-07-28") as client:
        with pytest.raises(MCPError, match="session=research"):
            await client.call_tool("Bash", {"command": "true"})


async def test_every_mistake_of_a_model_is_a_result_that_says_what_to_do(world: ServedWorld, door: Door) -> None:
    def make_files() -> None:
        with Client(world.socket, tenant="acme") as client:
            client.ensure_sandbox("s1", "ann")
            prepare(client, "s1", "ann")

    await anyio.to_thread.run_sync(make_files)
    async with connect(door, world.url, world.token, tenant="acme", session="s1") as client:
        for mistake in MISTAKES:
            if _has_half_a_character(mistake.arguments):  # which this client cannot send
                continue
            result = await client.call_tool(mistake.tool, dict(mistake.arguments))
            mistake.check(not result.is_error, text_of(result), details_of(result))


def _has_half_a_character(arguments: Mapping[str, Any]) -> bool:
    return re.search("[\ud800-\udfff]", json.dumps(dict(arguments), ensure_ascii=False)) is not None


async def test_half_a_character_is_named_over_http(world: ServedWorld) -> None:
    mistakes = [mistake for mistake in MISTAKES if _has_half_a_character(mistake.arguments)]
    assert mistakes
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {world.token}", **ACCEPT}) as http:
        url = f"{world.url}/mcp"
        opened = await http.post(url, json=INITIALIZE)
        http.headers["mcp-session-id"] = opened.headers["mcp-session-id"]
        for mistake in mistakes:
            params = {"name": mistake.tool, "arguments": dict(mistake.arguments)}
            body = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})
            answer = await http.post(url, content=body, headers={"content-type": "application/json"})
            (line,) = [line for line in answer.text.splitlines() if line.startswith("data: {")]
            result = json.loads(line.removeprefix("data: "))["result"]
            mistake.check(not result["isError"], result["content"][0]["text"])


async def test_half_a_character_is_named_over_stdio(world: ServedWorld) -> None:
    (mistake, *_) = [mistake for mistake in MISTAKES if _has_half_a_character(mistake.arguments)]
    params = {"name": mistake.tool, "arguments": dict(mistake.arguments)}
    messages = [
        INITIALIZE,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params},
    ]
    words = [sys.executable, "-m", "sandboxd", "mcp", "--socket", str(world.socket)]
    async with await anyio.open_process(words) as process:
        assert process.stdin
        assert process.stdout
        await process.stdin.send("".join(json.dumps(message) + "\n" for message in messages).encode())
        lines = TextReceiveStream(process.stdout)
        seen = ""
        with anyio.fail_after(HANG_S):
            while seen.count("\n") < 2:
                seen += await lines.receive()
        await process.stdin.aclose()
    result = json.loads(seen.splitlines()[1])["result"]
    mistake.check(not result["isError"], result["content"][0]["text"])


@pytest.mark.parametrize("arguments", ["not JSON", [1, 2], 7, '{"command": 7, "nonsense": 1}'])
async def test_arguments_of_another_shape_are_a_result_too(world: ServedWorld, door: Door, arguments: Any) -> None:
    async with connect(door, world.url, world.token) as client:
        raw = await _call_raw(client, {"name": "Bash", "arguments": arguments})
        assert raw["isError"] is True
        assert "Bash needs command" in raw["content"][0]["text"]
        raw = await _call_raw(client, {"name": ["Bash"]})
        assert "there is no such tool" in raw["content"][0]["text"]


async def test_arguments_as_the_text_of_an_object_are_accepted(world: ServedWorld, door: Door) -> None:
    async with connect(door, world.url, world.token) as client:
        raw = await _call_raw(client, {"name": "Bash", "arguments": '{"command": "echo fine"}'})
        assert raw["content"][0]["text"] == "fine"


async def _call_raw(client: McpClient, params: dict[str, Any]) -> dict[str, Any]:
    """Call a tool with parameters that the client's types do not allow."""
    return await client.session._dispatcher.send_raw_request("tools/call", params)


async def test_switches_decide_which_tools_are_offered(world: ServedWorld, door: Door) -> None:
    async with connect(door, world.url, world.token, switches=("read_only",), tenant="acme", session="s1") as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == READ_ONLY
        refused = await client.call_tool("Bash", {"command": "true"})
        assert refused.is_error
        assert "there is no such tool" in text_of(refused)
    async with connect(door, world.url, world.token, switches=("manage",), tenant="acme", session="s1") as client:
        assert {tool.name for tool in (await client.list_tools()).tools} > MANAGE
        assert not (await client.call_tool("sandbox_create")).is_error
        await client.call_tool("Write", {"file_path": "a.txt", "content": "one"})
        forked = await client.call_tool("sandbox_fork", {"session": "s2"})
        assert details_of(forked) == {"sessions": ["s2"]}
        taken = await client.call_tool("sandbox_snapshot", {"name": "before"})
        assert not taken.is_error, text_of(taken)
        assert (await client.call_tool("sandbox_destroy", {"confirm": False})).is_error
        assert not (await client.call_tool("sandbox_destroy", {"confirm": True})).is_error
    assert [view.session for view in world.manager.of_tenant("acme")] == ["s2"]  # type: ignore[arg-type]
    assert (world.workspace("s2") / "a.txt").read_text() == "one"


async def test_memory_is_written_with_its_author_and_never_over_an_unseen_change(
    client: McpClient, world: ServedWorld
) -> None:
    written = await client.call_tool("memo_write", {"name": "NOTES.md", "content": "one\n", "reason": "begin"})
    assert text_of(written) == "Wrote NOTES.md; it has revision 1 now."
    assert "one" in text_of(await client.call_tool("memo_read", {"name": "memo://session/NOTES.md"}))
    async with AsyncClient(world.socket, tenant="acme") as host:
        await host.append_memo("s1", "NOTES.md", "two\n")
        refused = await client.call_tool("memo_write", {"name": "NOTES.md", "content": "mine\n", "revision": 1})
        assert refused.is_error
        assert "one\ntwo\n" in text_of(refused)
        assert details_of(refused) == {"code": "memo.conflict", "revision": 2}
        edited = await client.call_tool(
            "memo_edit", {"name": "NOTES.md", "old_string": "two", "new_string": "three", "reason": "count"}
        )
        assert not edited.is_error, text_of(edited)
        await client.call_tool("memo_append", {"name": "USER.md", "content": "likes tea\n"})
        assert (await host.read_memo("ann", "USER.md", scope="user")).text == "likes tea\n"
        history = [(one.actor, one.reason) for one in await host.memo_history("s1", "NOTES.md")]
    assert history == [("mcp:tests", "count"), ("host", ""), ("mcp:tests", "begin")]
    listed = text_of(await client.call_tool("memo_list"))
    assert "session/NOTES.md  revision 3" in listed
    assert "user/USER.md  revision 1" in listed
    assert "mcp:tests  count" in text_of(await client.call_tool("memo_history", {"name": "NOTES.md"}))
    restored = await client.call_tool("memo_restore", {"name": "NOTES.md", "revision": 1})
    assert details_of(restored)["revision"] == 4
    missing = await client.call_tool("memo_edit", {"name": "NOTES.md", "old_string": "none", "new_string": ""})
    assert "old_string is not in the file" in text_of(missing)
    absent = await client.call_tool("memo_read", {"name": "PLAN.md"})
    assert "memo_list" in text_of(absent)


async def test_memory_and_tool_results_are_resources_of_the_own_session_only(
    client: McpClient, world: ServedWorld
) -> None:
    assert (await client.list_resources()).resources == []
    async with AsyncClient(world.socket, tenant="acme") as host:
        await host.ensure_session("s1", "ann")
        await host.ensure_session("s2", "bob")
        await host.write_memo("s1", "NOTES.md", "own\n")
        await host.write_memo("ann", "USER.md", "tea\n", scope="user")
        await host.write_artifact("s1", "call-1", "a long result")
        await host.write_memo("s2", "TODO.md", "another session's\n")
        await host.write_memo("bob", "USER.md", "another user's\n", scope="user")
        await host.ensure_session("s1", "ann", tenant="globex")
        await host.write_memo("s1", "PLAN.md", "another tenant's\n", tenant="globex")
    resources = (await client.list_resources(cache_mode="bypass")).resources
    uris = [str(resource.uri) for resource in resources]
    assert uris == ["memo://session/NOTES.md", "memo://user/USER.md", "memo://session/tool-results/call-1"]
    contents = [(await client.read_resource(uri)).contents[0] for uri in uris]
    assert [item.text for item in contents if isinstance(item, types.TextResourceContents)] == [
        "own\n",
        "tea\n",
        "a long result",
    ]
    templates = (await client.list_resource_templates()).resource_templates
    assert {template.uri_template for template in templates} == {
        "memo://session/{+name}",
        "memo://user/{+name}",
        "memo://session/tool-results/{id}",
    }
    for uri in ("memo://session/PLAN.md", "memo://session/../s2/TODO.md", "file:///etc/passwd", "memo://globex/s1"):
        with pytest.raises(MCPError, match="cannot"):
            await client.read_resource(uri)


@pytest.mark.filterwarnings("ignore:resources/.* is removed")  # from the protocol's newest version only
async def test_a_change_of_a_subscribed_document_is_notified(world: ServedWorld, door: Door) -> None:
    heard, has_news = [], anyio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification | types.ResourceListChangedNotification):
            heard.append(getattr(message.params, "uri", message.method))
            has_news.set()

    async with (
        connect(
            door,
            world.url,
            world.token,
            client_options={"message_handler": hear},
            tenant="acme",
            session="s1",
            user="ann",
        ) as client,
        AsyncClient(world.socket, tenant="acme") as host,
    ):
        assert client.server_capabilities.resources == types.ResourcesCapability(subscribe=True, list_changed=True)
        await client.call_tool("memo_write", {"name": "USER.md", "content": "tea\n"})
        await client.subscribe_resource("memo://user/USER.md")
        heard.clear()
        has_news = anyio.Event()
        await host.write_memo("ann", "USER.md", "another tenant's\n", scope="user", tenant="globex")
        await host.write_memo("bob", "USER.md", "another user's\n", scope="user")
        await host.ensure_session("s1", "ann")
        await host.write_memo("ann", "USER.md", "coffee\n", scope="user")
        with anyio.fail_after(HANG_S):
            await has_news.wait()
        assert heard == ["memo://user/USER.md"]
        has_news = anyio.Event()
        await client.unsubscribe_resource("memo://user/USER.md")
        await host.write_memo("ann", "USER.md", "water\n", scope="user")
        await host.write_memo("s1", "NOTES.md", "new\n")
        with anyio.fail_after(HANG_S):
            await has_news.wait()
        assert heard == ["memo://user/USER.md", "notifications/resources/list_changed"]


@pytest.mark.filterwarnings("ignore:resources/.* is removed")  # from the protocol's newest version only
async def test_a_change_that_another_program_makes_in_the_store_is_notified(tmp_path: Path, door: Door) -> None:
    heard: anyio.Event = anyio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            assert message.params.uri == "memo://user/facts/tea.md"
            heard.set()

    async with (
        open_store("memory://") as store,
        serving(tmp_path, store=store) as world,
        AsyncClient(world.socket, tenant="acme") as host,
    ):
        await host.ensure_sandbox("s1", "ann")  # a mirror that is refreshed
        async with connect(
            door,
            world.url,
            world.token,
            client_options={"message_handler": hear},
            tenant="acme",
            session="s1",
        ) as client:
            await client.subscribe_resource("memo://user/facts/tea.md")
            key = DocumentKey.of_user(TenantId("acme"), UserId("ann"), DocumentName("facts/tea.md"))
            await store.write_document(key, "green\n")
            with anyio.fail_after(HANG_S):
                await heard.wait()
            (content,) = (await client.read_resource("memo://user/facts/tea.md")).contents
    assert isinstance(content, types.TextResourceContents)
    assert content.text == "green\n"


async def test_changes_are_heard_on_a_stream_without_a_handshake(world: ServedWorld, door: Door) -> None:
    async with (
        connect(door, world.url, world.token, era="2026-07-28", tenant="acme", session="s1", user="ann") as client,
        AsyncClient(world.socket, tenant="acme") as host,
        client.listen(resources_list_changed=True, resource_subscriptions=["memo://user/USER.md"]) as changes,
    ):
        await host.write_memo("ann", "USER.md", "another tenant's\n", scope="user", tenant="globex")
        await host.write_memo("ann", "USER.md", "tea\n", scope="user")
        heard = set()
        with anyio.fail_after(HANG_S):
            async for change in changes:
                heard.add(type(change).__name__)
                if len(heard) == 2:
                    break
    assert heard == {"ResourceUpdated", "ResourcesListChanged"}


async def test_output_is_reported_as_progress_while_a_tool_runs(client: McpClient, world: ServedWorld) -> None:
    messages: list[tuple[float, str | None]] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        messages.append((progress, message))
        (world.workspace("s1") / "go").touch()

    command = "echo first; until test -e /workspace/go; do sleep 0.01; done; echo last"
    result = await client.call_tool("Bash", {"command": command}, progress_callback=report)
    assert text_of(result) == "first\nlast"
    assert messages[0] == (1, "first")


async def test_a_cancelled_call_kills_the_process_tree(client: McpClient, world: ServedWorld) -> None:
    async with anyio.create_task_group() as tasks:

        async def stop(progress: float, total: float | None, message: str | None) -> None:
            tasks.cancel_scope.cancel()

        await client.call_tool("Bash", SLEEP, progress_callback=stop)
    await world.wait_quiet("s1")
    assert not (await client.call_tool("Bash", {"command": "true"})).is_error


async def test_closing_the_connection_kills_what_it_runs(world: ServedWorld, door: Door, era: str) -> None:
    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            async with connect(door, world.url, world.token, era=era, tenant="acme", session="s1") as client:

                async def stop(progress: float, total: float | None, message: str | None) -> None:
                    tasks.cancel_scope.cancel()

                await client.call_tool("Bash", SLEEP, progress_callback=stop)

        tasks.start_soon(call)
    await world.wait_quiet("s1")


async def test_two_clients_share_one_session(world: ServedWorld) -> None:
    async with (
        connect("stdio", world.url, world.token, tenant="acme", session="s1", user="ann") as one,
        connect("http", world.url, world.token, tenant="acme", session="s1", user="ann") as other,
        anyio.create_task_group() as tasks,
    ):
        for number, client in enumerate((one, other) * 5):
            tasks.start_soon(client.call_tool, "memo_append", {"name": "NOTES.md", "content": f"{number}\n"})
    async with AsyncClient(world.socket, tenant="acme") as host:
        lines = (await host.read_memo("s1", "NOTES.md")).text.split()
        assert sorted(map(int, lines)) == list(range(10))
        assert {one.actor for one in await host.memo_history("s1", "NOTES.md")} == {"mcp:tests"}


async def test_a_container_that_died_is_started_again_and_the_model_is_told(
    client: McpClient, world: ServedWorld
) -> None:
    await client.call_tool("Write", {"file_path": "a.txt", "content": "one"})
    world.table.end(world.running_container("s1"))
    await world.wait_for("s1", "gone")
    told = await client.call_tool("Read", {"file_path": "a.txt"})
    assert told.is_error
    assert "started again with its files" in text_of(told)
    assert "one" in text_of(await client.call_tool("Read", {"file_path": "a.txt"}))


def test_the_daemon_and_the_command_line_do_not_import_the_sdk() -> None:
    code = (
        "import sys, sandboxd.daemon.process, sandboxd.cli.mcp; print('mcp' in sys.modules, 'aiohttp' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split()[0] == "False"


def test_without_a_daemon_the_command_says_so(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "sandboxd", "mcp", "--socket", str(tmp_path / "none.sock"), "--session", "s1"]
    found = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert found.returncode == 3
    assert found.stdout == ""
    first, step = found.stderr.splitlines()
    assert first.startswith("cannot reach the daemon at")
    assert "sandboxd serve" in step


async def test_a_new_session_can_be_removed_at_the_end(world: ServedWorld) -> None:
    async with connect("stdio", world.url, world.token, switches=("rm",)) as client:
        await client.call_tool("Bash", {"command": "true"})
        assert len(world.running()) == 1
    with anyio.fail_after(HANG_S):
        while not world.is_empty():
            await anyio.sleep(0.02)
