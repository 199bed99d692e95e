"""The command line as a program: real processes against the API on a fake engine, exit codes and all."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio.to_thread
import pytest

from memo.ids import TenantId
from sandboxd.cli.tool import parse_arguments
from sandboxd.client import AsyncClient
from sandboxd.errors import InvalidRequest
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

COMMANDS = (
    "serve",
    "image build",
    "image ls",
    "doctor",
    "create",
    "ls",
    "exec",
    "run",
    "shell",
    "cp",
    "attach",
    "ps",
    "logs",
    "kill",
    "tool",
    "ports",
    "forward",
    "preview",
    "rm",
    "events",
    "gc",
    "bench",
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path) as world:
        yield world


def run(socket: Path | str, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "SANDBOXD_SOCKET": str(socket), "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", "sandboxd", *words], input=stdin, capture_output=True, env=env, timeout=60, check=False
    )


async def cli(world: World, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return await anyio.to_thread.run_sync(lambda: run(world.socket, *words, stdin=stdin))


async def test_a_sandbox_is_created_listed_and_removed(world: World) -> None:
    made = await cli(world, "create", "demo", "--user", "alice", "--memory-mb", "64", "--json")
    assert made.returncode == 0, made.stderr
    view = json.loads(made.stdout)
    assert (view["session"], view["user"], view["limits"]["memory_mb"]) == ("demo", "alice", 64)
    listed = await cli(world, "ls")
    assert listed.stdout.decode().split("\t")[:3] == ["demo", "alice", "ready"]
    assert len(json.loads((await cli(world, "ls", "--json")).stdout)["items"]) == 1
    assert (await cli(world, "ls", "--tenant", "other")).stdout == b""
    assert (await cli(world, "rm", "demo")).returncode == 0
    missing = await cli(world, "rm", "demo")
    assert missing.returncode == 1
    assert missing.stderr.decode().startswith("cannot remove the sandbox of demo: it does not exist")


async def test_exec_passes_stdin_output_and_exit_code(world: World) -> None:
    await cli(world, "create", "demo")
    done = await cli(world, "exec", "demo", "cat; echo err >&2; exit 7", stdin=b"\xff\0bytes")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"\xff\0bytes", b"err\n")
    done = await cli(world, "exec", "demo", "--", "printf", "%s|", "-n", "--json")
    assert (done.returncode, done.stdout) == (0, b"-n|--json|")
    done = await cli(world, "exec", "-e", "A=b", "demo", "echo $A")
    assert done.stdout == b"b\n"
    done = await cli(world, "exec", "--timeout", "0.3", "demo", "sleep 60")
    assert done.returncode == 124
    done = await cli(world, "exec", "--json", "demo", "echo hi; exit 3")
    assert (done.returncode, json.loads(done.stdout)["stdout"]) == (3, "hi\n")
    done = await cli(world, "exec", "nobody", "true")
    assert done.returncode == 125


async def test_a_tool_is_called_by_hand(world: World) -> None:
    await cli(world, "create", "demo")
    done = await cli(world, "tool", "demo", "Write", '{"file_path": "/workspace/a", "content": {"a": 1}}')
    assert (done.returncode, done.stderr) == (1, b"")  # JSON is sent as it is, and Write requires text
    assert done.stdout.startswith(b"cannot call Write: content must be text")
    done = await cli(world, "tool", "demo", "Write", "file_path=/workspace/a", "content=1")
    assert done.returncode == 0, done.stderr
    done = await cli(world, "tool", "demo", "Read", "-", stdin=b'{"file_path": "/workspace/a"}')
    assert done.stdout == b"     1\t1\n"
    done = await cli(world, "tool", "demo", "Bash", "command=exit 4", "--json")
    assert (done.returncode, json.loads(done.stdout)["details"]["exit_code"]) == (1, 4)
    assert b"Grep" in (await cli(world, "tool", "demo")).stdout
    done = await cli(world, "tool", "demo", "Raed", "file_path=a")
    assert (done.returncode, b"did you mean Read?" in done.stdout) == (1, True)
    assert (await cli(world, "tool", "demo", "Read", "no pair")).returncode == 2
    tools = json.loads((await cli(world, "tool", "demo", "--format", "openai")).stdout)
    assert {tool["type"] for tool in tools} == {"function"}
    assert (await cli(world, "tool", "demo", "--format", "yaml")).returncode == 2
    assert (await cli(world, "tool", "demo", "Read", "--format", "mcp")).returncode == 2


async def test_events_gc_and_bench_print_json(world: World) -> None:
    await cli(world, "create", "demo")
    lines = (await cli(world, "events", "--json")).stdout.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["sandbox"]
    assert json.loads((await cli(world, "gc", "--json")).stdout)["containers"] == 0
    measured = await cli(world, "bench", "--count", "3", "--json")
    assert set(json.loads(measured.stdout)["results"]) >= {"command", "write 4 KB"}
    assert [view.session for view in world.manager.of_tenant(TenantId("default"))] == [
        "demo"
    ]  # bench leaves nothing behind


@pytest.mark.parametrize(
    "words", [("ls",), ("create", "s"), ("exec", "s", "true"), ("rm", "s"), ("tool", "s"), ("events",), ("gc",)]
)
def test_without_a_daemon_the_exit_code_is_3_and_the_error_says_what_to_do(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = run(tmp_path / "none", *words)
    assert done.returncode == 3
    assert b"cannot reach the daemon" in done.stderr
    assert b"sandboxd serve" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("nope",),
        ("exec",),
        ("exec", "s"),
        ("rm",),
        ("create", "s", "--env", "novalue"),
        ("create", "s", "--cpus", "many"),
        ("serve", "--engine", "nope"),
        ("serve", "--tcp", "127.0.0.1:1"),
        ("image",),
        ("image", "nope"),
    ],
)
def test_wrong_usage_exits_with_code_2(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(tmp_path / "none", *words)
    assert done.returncode == 2, done.stderr
    assert b"Traceback" not in done.stderr


async def test_an_illegal_id_is_wrong_usage(world: World) -> None:
    assert (await cli(world, "create", "../x")).returncode in (1, 2)
    assert (await cli(world, "create", "a b")).returncode == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_json(tmp_path: Path, command: str) -> None:
    done = run(tmp_path / "none", *command.split(), "--help")
    assert done.returncode == 0
    assert b"Example: sandboxd" in done.stdout
    assert b"--json" in done.stdout


def test_exec_does_not_load_the_daemon(tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['sandboxd', 'exec', '--no-stdin', 's', 'true']\n"
        "from sandboxd.cli import main\n"
        "try:\n    main()\nexcept SystemExit: pass\n"
        "print(' '.join(sys.modules))"
    )
    env = {**os.environ, "SANDBOXD_SOCKET": str(tmp_path / "none")}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=env, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    assert "sandboxd.client._sync.client" in loaded
    assert not loaded & {
        "asyncio",
        "httptools",
        "starlette",
        "docker",
        "uvicorn",
        "aiohttp",
        "structlog",
        "rich",
        "memo.stores",
    }


TALKING = tuple(command for command in COMMANDS if command not in ("serve", "image build", "image ls"))


@pytest.mark.parametrize("command", TALKING)
def test_every_command_that_talks_to_a_daemon_takes_its_url_and_token(tmp_path: Path, command: str) -> None:
    env = {**os.environ, "SANDBOXD_TOKEN": "very-secret", "SANDBOXD_URL": "http://127.0.0.1:1", "COLUMNS": "200"}
    words = [sys.executable, "-m", "sandboxd", *command.split(), "--help"]
    done = subprocess.run(words, capture_output=True, env=env, timeout=60, check=True)
    for option in (b"--socket", b"--url", b"--token", b"SANDBOXD_TOKEN"):
        assert option in done.stdout
    assert b"very-secret" not in done.stdout


async def test_a_daemon_is_reached_by_its_url(world: World, tmp_path: Path) -> None:
    def over_tcp(*words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
        env = {**os.environ, "SANDBOXD_SOCKET": str(tmp_path / "none"), **variables}
        command = [sys.executable, "-m", "sandboxd", *words]
        return subprocess.run(command, input=b"", capture_output=True, env=env, timeout=60, check=False)

    async def run_over_tcp(*words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
        return await anyio.to_thread.run_sync(lambda: over_tcp(*words, **variables))

    made = await run_over_tcp("create", "demo", "--url", world.url, "--token", world.token)
    assert made.returncode == 0, made.stderr
    place = {"SANDBOXD_URL": world.url, "SANDBOXD_TOKEN": world.token}
    done = await run_over_tcp("exec", "demo", "echo hi", **place)
    assert (done.returncode, done.stdout) == (0, b"hi\n")
    listed = await run_over_tcp("ls", "--socket", str(world.socket), **{**place, "SANDBOXD_URL": "http://127.0.0.1:1"})
    assert (listed.returncode, listed.stdout.split()[0]) == (0, b"demo")
    both = await run_over_tcp("ls", "--socket", str(world.socket), "--url", world.url)
    assert both.returncode == 2
    wrong = await run_over_tcp("ls", "--url", world.url, "--token", "wrong-token-of-some-length")
    assert wrong.returncode == 1
    assert b"wrong-token" not in wrong.stderr


def test_an_unreachable_url_exits_with_code_3_and_an_invalid_one_is_wrong_usage(tmp_path: Path) -> None:
    place = ("--url", "http://127.0.0.1:1", "--token", "very-secret")
    gone = run(tmp_path / "none", "ls", *place)
    assert gone.returncode == 3
    assert b"127.0.0.1:1" in gone.stderr
    assert b"very-secret" not in gone.stderr
    assert run(tmp_path / "none", "doctor", *place).returncode == 3
    wrong = run(tmp_path / "none", "ls", "--url", "127.0.0.1:1")
    assert (wrong.returncode, b"cannot use this URL" in wrong.stderr) == (2, True)


SCHEMA = {
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "items": {"type": "array"},
        "table": {"type": "object"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }
}


def test_a_value_is_read_as_the_schema_of_the_tool_says() -> None:
    assert parse_arguments(['{"a": [1]}'], SCHEMA) == {"a": [1]}
    pairs = ["text=true", "count=3", "ratio=2", "flag=true", "items=[1]", 'table={"x": 1}', "maybe=1", "unknown=x=y"]
    assert parse_arguments(pairs, SCHEMA) == {
        "text": "true",
        "count": 3,
        "ratio": 2,
        "flag": True,
        "items": [1],
        "table": {"x": 1},
        "maybe": "1",
        "unknown": "x=y",
    }


def test_text_stays_text_where_the_schema_says_text() -> None:
    for text in ("123", "true", "null", '{"a": 1}', "[1]", ""):
        assert parse_arguments([f"text={text}", f"maybe={text}"], SCHEMA) == {"text": text, "maybe": text}


def test_a_value_of_the_wrong_type_is_left_to_the_daemon_to_refuse() -> None:
    given = parse_arguments(["count=many", "flag=yes", "items=a,b", "table=[1]"], SCHEMA)
    assert given == {"count": "many", "flag": "yes", "items": "a,b", "table": [1]}
    with pytest.raises(InvalidRequest, match="neither NAME=VALUE nor a JSON object"):
        parse_arguments(["count"], SCHEMA)


async def test_exec_streams_stdin_of_any_length(world: World) -> None:
    await cli(world, "create", "demo")
    content = bytes(range(256)) * 80_000
    done = await cli(world, "exec", "demo", "sha256sum", stdin=content)
    assert (done.returncode, done.stdout.split()[0]) == (0, hashlib.sha256(content).hexdigest().encode())
    done = await cli(world, "exec", "--json", "demo", "wc -c", stdin=content)
    assert json.loads(done.stdout)["stdout"].strip() == str(len(content))


async def test_exec_ends_with_its_command_although_stdin_stays_open(world: World) -> None:
    await cli(world, "create", "demo")
    env = {**os.environ, "SANDBOXD_SOCKET": str(world.socket)}

    def run_with_open_stdin() -> tuple[int, bytes, bytes]:
        command = [sys.executable, "-m", "sandboxd", "exec", "demo", "read line; echo got $line"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, env=env, **pipes) as process:  # type: ignore[call-overload]
            process.stdin.write(b"this\n")
            process.stdin.flush()
            try:
                return process.wait(30), process.stdout.read(), process.stderr.read()
            finally:
                process.kill()

    assert await anyio.to_thread.run_sync(run_with_open_stdin) == (0, b"got this\n", b"")


async def test_exec_with_an_empty_stdin_gives_its_command_none(world: World) -> None:
    await cli(world, "create", "demo")
    assert (await cli(world, "exec", "demo", "readlink /proc/self/fd/0")).stdout == b"/dev/null\n"


async def test_exec_merges_stderr_on_request(world: World) -> None:
    await cli(world, "create", "demo")
    done = await cli(world, "exec", "--merge-stderr", "demo", "echo a; echo b >&2; echo c")
    assert (done.stdout, done.stderr) == (b"a\nb\nc\n", b"")


async def test_rm_of_a_missing_sandbox_succeeds_on_request(world: World) -> None:
    await cli(world, "create", "demo")
    for _ in range(2):
        assert (await cli(world, "rm", "--missing-ok", "demo")).returncode == 0
    assert (await cli(world, "rm", "demo")).returncode == 1


async def test_processes_are_listed_signalled_and_ended(world: World) -> None:
    await cli(world, "create", "demo")
    command = "sleep 600; sleep 601"
    async with AsyncClient(world.socket) as client:
        started = [await client.start_process("demo", command) for _ in range(2)]
    assert [process.id for process in started] == ["p1", "p2"]
    listed = (await cli(world, "ps", "demo")).stdout.decode().splitlines()
    assert started[0].started_at is not None
    at = started[0].started_at.isoformat(timespec="seconds")
    assert listed[0].split("\t") == ["p1", "running", at, command]
    done = await cli(world, "kill", "--only", "--signal", "sigint", "--to", "children", "demo", "p1")
    assert (done.returncode, done.stdout) == (0, b"INT sent to 1 processes\n")
    done = await cli(world, "kill", "--signal", "TERM", "--grace", "2", "demo", "p1")
    assert (done.returncode, done.stdout) == (0, b"ended by TERM\n")
    assert json.loads((await cli(world, "kill", "--json", "demo", "p2")).stdout)["ended_by"] == "KILL"
    assert (await cli(world, "kill", "demo", "p9")).returncode == 1
    assert (await cli(world, "kill", "--signal", "NOPE", "demo", "p1")).returncode == 2
    assert (await cli(world, "kill", "--to", "children", "demo", "p1")).returncode == 2
