"""The tour of the object API, run as an example, and calls that the tour does not show."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxd.client import AsyncClient, AsyncSandbox, Client, Sandbox
from sandboxd.errors import InvalidRequest, ProcessNotFound, SandboxNotFound
from tests.running import RunningDaemon
from tests.tour import environment_of

pytestmark = pytest.mark.engine

EXAMPLE = Path(__file__).parents[2] / "examples" / "sandbox_tour.py"
PRINTED = [
    "hello 3",
    "live: ['1', '2']",
    "0 got Ada",
    "True",
    "buy milk",
    "- send the report 2",
    "True True",
    "/workspace",
    "True",
    "ready",
]


def test_the_tour_of_the_object_api_prints_the_same_with_both_clients(daemon: RunningDaemon) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE],
        env=environment_of(daemon),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("live:")]
    # A burst of output may arrive in one piece or in several.
    assert lines == 2 * [line for line in PRINTED if not line.startswith("live:")]
    live = [line for line in done.stdout.splitlines() if line.startswith("live:")]
    assert "".join(live).count("'1'") == "".join(live).count("'2'") == 2


def test_leaving_a_sandbox_leaves_it_running_and_kill_removes_it(client: Client, daemon: RunningDaemon) -> None:
    with Sandbox.create("object-1", user="ada", socket=daemon.socket) as sandbox:
        assert sandbox.view.created is True
        sandbox.commands.run("echo kept > file")
    with Sandbox.connect("object-1", client=client) as again:
        assert again.view.created is False
        assert again.files.read("file") == "kept\n"
        assert again.files.read("/workspace/file", format="bytes") == b"kept\n"
        again.kill()
        again.kill()
    assert client.health()["status"] == "ok", "a client that was given stays open"
    with pytest.raises(SandboxNotFound):
        Sandbox.connect("object-1", client=client)
    with pytest.raises(InvalidRequest, match="already has an address"):
        Sandbox.connect("object-1", client=client, socket=daemon.socket)


def test_output_reaches_the_callbacks_and_the_result(client: Client) -> None:
    out: list[str] = []
    err: list[str] = []
    with Sandbox.create("object-2", user="ada", client=client) as sandbox:
        result = sandbox.commands.run(
            "printf 'caf\\303'; sleep 0.2; printf '\\251'; echo bad >&2; printf '\\377'; exit 4",
            on_stdout=out.append,
            on_stderr=err.append,
        )
        sandbox.kill()
    assert "".join(out) == "café\N{REPLACEMENT CHARACTER}"
    assert ("".join(err), result.stderr, result.exit_code) == ("bad\n", "bad\n", 4)
    assert result.stdout_bytes == "café".encode() + b"\xff"


def test_a_background_command_is_found_again_and_killed(client: Client) -> None:
    with Sandbox.create("object-3", user="ada", client=client) as sandbox:
        handle = sandbox.commands.run("echo up; sleep 600", background=True)
        assert next(iter(handle)) == "up\n"
        again = sandbox.commands.connect(handle.id)
        assert next(iter(again)) == "up\n"
        assert again.kill() is True
        assert handle.wait().exit_code == 137
        assert sandbox.commands.kill("p-unknown") is False
        with pytest.raises(ProcessNotFound):
            sandbox.commands.connect("p-unknown")
        with pytest.raises(InvalidRequest, match="cannot run this in the background"):
            sandbox.commands.run("true", background=True, timeout_s=1)  # type: ignore[call-overload]
        sandbox.kill()


def test_an_async_callback_is_awaited(daemon: RunningDaemon) -> None:
    async def work() -> str:
        seen: list[str] = []

        async def note(text: str) -> None:
            await asyncio.sleep(0)
            seen.append(text)

        async with AsyncClient(daemon.socket) as client:
            sandbox = await AsyncSandbox.create("object-4", user="ada", client=client)
            await sandbox.commands.run("echo one; echo two", on_stdout=note)
            handle = await sandbox.commands.run("echo three", background=True, on_stdout=note)
            await handle.wait()
            await sandbox.kill()
        return "".join(seen)

    assert asyncio.run(work()) == "one\ntwo\nthree\n"


def test_memory_is_edited_compared_and_restored(client: Client) -> None:
    with Sandbox.create("object-5", user="ada", client=client) as sandbox:
        memo = sandbox.memo
        memo.write("NOTES.md", "a\nb\na\n")
        with pytest.raises(InvalidRequest, match="found 2 matches"):
            memo.edit("NOTES.md", "a", "x")
        with pytest.raises(InvalidRequest, match="found 0 matches"):
            memo.edit("NOTES.md", "missing", "x")
        memo.edit("NOTES.md", "a", "x", replace_all=True)
        memo.append("NOTES.md", "c\n")
        assert memo.read("NOTES.md").text == "x\nb\nx\nc\n"
        assert "+c" in memo.diff("NOTES.md")
        memo.restore("NOTES.md", 1)
        assert memo.read("NOTES.md").text == "a\nb\na\n"
        assert [one.revision for one in memo.history("NOTES.md")] == [4, 3, 2, 1]
        assert [one.name for one in memo.list()] == ["NOTES.md"]
        memo.write("USER.md", "# Ada\n", scope="user")
        assert client.read_memo("ada", "USER.md", scope="user").text == "# Ada\n"
        assert {tool.name for tool in sandbox.tools.schemas()} >= {"Bash", "Read"}
        assert sandbox.get_view().state == "ready"
        sandbox.kill()
