"""OpenAI Agents SDK: the sandbox protocol over a real sandbox, and one run of an agent that uses its tools."""

from __future__ import annotations

import io
import json
import tarfile
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from agents import Model, ModelResponse, RunConfig, Runner, Usage
from agents.sandbox import (
    ExecTimeoutError,
    LocalSnapshotSpec,
    Manifest,
    SandboxAgent,
    SandboxPathGrant,
    SandboxRunConfig,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.entries import Dir, File, LocalDir
from agents.sandbox.errors import ConfigurationError, ExposedPortUnavailableError, InvalidManifestPathError
from agents.sandbox.session.sandbox_session import SandboxSession
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from sandboxd.client import AsyncClient, Client
from sandboxd.integrations.openai_agents import SandboxdSandboxClient, SandboxdSandboxClientOptions

OPTIONS = SandboxdSandboxClientOptions()


@pytest.fixture
async def sandboxes() -> AsyncIterator[SandboxdSandboxClient]:
    async with AsyncClient() as client:
        yield SandboxdSandboxClient(client)


@pytest.fixture
async def sandbox(sandboxes: SandboxdSandboxClient) -> AsyncIterator[SandboxSession]:
    session = await sandboxes.create(options=OPTIONS)
    await session.start()
    yield session
    await session.aclose()


async def write(sandbox: SandboxSession, path: str, content: bytes) -> None:
    await sandbox.write(Path(path), io.BytesIO(content))


async def read(sandbox: SandboxSession, path: str) -> bytes:
    stream = await sandbox.read(Path(path))
    return bytes(stream.read())


async def test_a_command_returns_bytes_and_its_exit_code(sandbox: SandboxSession) -> None:
    done = await sandbox.exec("printf '\\377\\000out'; printf err >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_code) == (b"\xff\x00out", b"err", 3)


async def test_a_command_runs_in_the_root_of_the_workspace(sandbox: SandboxSession) -> None:
    assert (await sandbox.exec("pwd", shell=False)).stdout == b"/workspace\n"


async def test_a_command_that_outlives_its_timeout_is_an_error(sandbox: SandboxSession) -> None:
    with pytest.raises(ExecTimeoutError):
        await sandbox.exec("sleep 30", timeout=0.2)


async def test_a_file_is_written_and_read_back(sandbox: SandboxSession) -> None:
    await write(sandbox, "made/for/it/file.bin", bytes(range(256)))
    assert await read(sandbox, "made/for/it/file.bin") == bytes(range(256))
    assert await read(sandbox, "/workspace/made/for/it/file.bin") == bytes(range(256))


async def test_a_missing_file_is_not_found(sandbox: SandboxSession) -> None:
    with pytest.raises(WorkspaceReadNotFoundError):
        await read(sandbox, "missing.txt")


async def test_a_path_outside_the_workspace_is_refused(sandbox: SandboxSession) -> None:
    for path in ("../etc/passwd", "/etc/passwd"):
        with pytest.raises(InvalidManifestPathError):
            await read(sandbox, path)


async def test_a_link_that_leads_outside_is_refused(sandbox: SandboxSession) -> None:
    await sandbox.exec("ln -s /etc/passwd link && ln -s /etc dir")
    for path in ("link", "dir/passwd"):
        with pytest.raises(InvalidManifestPathError):
            await read(sandbox, path)


async def test_memory_is_a_directory_of_the_session(sandboxes: SandboxdSandboxClient, client: Client) -> None:
    user = f"user-{uuid.uuid4().hex}"
    client.write_memo(user, "USER.md", "likes tea\nlives in Bern\n", scope="user")
    async with await sandboxes.create(options=SandboxdSandboxClientOptions(user=user)) as sandbox:
        assert await read(sandbox, "memo/user/USER.md") == b"likes tea\nlives in Bern\n"
        diff = "@@\n-likes tea\n+likes coffee\n lives in Bern\n"
        await sandbox.apply_patch({"type": "update_file", "path": "memo/user/USER.md", "diff": diff})
        await write(sandbox, "memo/session/NOTES.md", b"from the SDK")
        assert (await sandbox.exec("cat memo/user/USER.md memo/session/NOTES.md")).stdout.startswith(b"likes coffee")
    [newest, _] = client.memo_history(user, "USER.md", scope="user")
    assert (newest.actor, newest.reason) == ("openai-agents", "write to the sandbox session")


async def test_memory_that_was_not_read_is_not_overwritten(sandboxes: SandboxdSandboxClient, client: Client) -> None:
    user = f"user-{uuid.uuid4().hex}"
    client.write_memo(user, "USER.md", "from another agent", scope="user")
    async with await sandboxes.create(options=SandboxdSandboxClientOptions(user=user)) as sandbox:
        with pytest.raises(WorkspaceArchiveWriteError):
            await write(sandbox, "memo/user/USER.md", b"from here")
        with pytest.raises(WorkspaceArchiveWriteError):
            await write(sandbox, "memo/session/tool-results/x.txt", b"not a document")
    assert client.read_memo(user, "USER.md", scope="user").text == "from another agent"


async def test_the_variables_of_the_manifest_are_set(sandboxes: SandboxdSandboxClient) -> None:
    manifest = Manifest(environment={"value": {"GREETING": "hello"}})
    async with await sandboxes.create(options=OPTIONS, manifest=manifest) as sandbox:
        assert (await sandbox.exec("echo $GREETING")).stdout == b"hello\n"


async def test_another_root_than_the_workspace_is_refused(sandboxes: SandboxdSandboxClient) -> None:
    with pytest.raises(ConfigurationError, match="has its files in /workspace"):
        await sandboxes.create(options=OPTIONS, manifest=Manifest(root="/srv"))


async def test_a_shared_session_outlives_the_sdk_s_session(sandboxes: SandboxdSandboxClient, client: Client) -> None:
    name = f"shared-{uuid.uuid4().hex}"
    client.ensure_sandbox(name, "agents")
    async with await sandboxes.create(options=SandboxdSandboxClientOptions(session=name)) as sandbox:
        await write(sandbox, "made.txt", b"by the SDK")
    assert client.read_file(name, "/workspace/made.txt") == b"by the SDK"
    await sandboxes.delete(sandbox)
    assert not await sandbox.running()


async def test_files_are_listed_moved_compared_and_removed(sandbox: SandboxSession) -> None:
    await sandbox.mkdir("a/b", parents=True)
    await write(sandbox, "a/b/one", b"1")
    listed = [(entry.path, entry.size) for entry in await sandbox.ls("a/b") if not entry.is_dir()]
    assert listed == [("/workspace/a/b/one", 1)]
    await sandbox.mv("a/b/one", "a/two")
    assert await read(sandbox, "a/two") == b"1"
    assert await sandbox.same_file("a/two", "a/b/../two")
    assert not await sandbox.same_file("a/two", "a/b")
    await sandbox.rm("a", recursive=True)
    assert (await sandbox.exec("ls a")).exit_code == 2


async def test_a_patch_is_applied(sandbox: SandboxSession) -> None:
    await write(sandbox, "code.py", b"one = 1\ntwo = 2\n")
    await sandbox.apply_patch({"type": "update_file", "path": "code.py", "diff": "@@\n one = 1\n-two = 2\n+two = 3\n"})
    await sandbox.apply_patch({"type": "create_file", "path": "new/file.py", "diff": "+made = True\n"})
    assert await read(sandbox, "code.py") == b"one = 1\ntwo = 3\n"
    assert (await read(sandbox, "new/file.py")).strip() == b"made = True"
    await sandbox.apply_patch({"type": "delete_file", "path": "code.py"})
    with pytest.raises(WorkspaceReadNotFoundError):
        await read(sandbox, "code.py")


async def test_an_archive_is_extracted(sandbox: SandboxSession) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("inner/file.txt")
        member.size = 6
        archive.addfile(member, io.BytesIO(b"packed"))
    packed.seek(0)
    await sandbox.extract("given/archive.tar", packed)
    assert await read(sandbox, "given/inner/file.txt") == b"packed"


async def test_a_manifest_is_made_into_files(sandboxes: SandboxdSandboxClient, tmp_path: Path) -> None:
    (tmp_path / "local.txt").write_text("from the host")
    manifest = Manifest(
        entries={
            "given": Dir(children={"file.txt": File(content=b"given")}),
            "local": LocalDir(src=tmp_path),
        },
        extra_path_grants=(SandboxPathGrant(path=str(tmp_path), read_only=True),),
    )
    async with await sandboxes.create(options=OPTIONS, manifest=manifest) as sandbox:
        assert await read(sandbox, "given/file.txt") == b"given"
        assert await read(sandbox, "local/local.txt") == b"from the host"


async def test_a_session_is_resumed_with_its_files(sandboxes: SandboxdSandboxClient) -> None:
    first = await sandboxes.create(options=OPTIONS)
    await first.start()
    await write(first, "kept.txt", b"kept")
    payload = json.loads(json.dumps(sandboxes.serialize_session_state(first.state)))

    async with await sandboxes.resume(sandboxes.deserialize_session_state(payload)) as again:
        assert await read(again, "kept.txt") == b"kept"


async def test_a_deleted_sandbox_comes_back_from_its_snapshot(sandboxes: SandboxdSandboxClient, tmp_path: Path) -> None:
    first = await sandboxes.create(options=OPTIONS, snapshot=LocalSnapshotSpec(base_path=tmp_path))
    await first.start()
    await write(first, "deep/kept.txt", b"kept")
    await first.exec("chmod 750 deep/kept.txt && ln -s deep/kept.txt link")
    await first.aclose()
    assert not await first.running()

    async with await sandboxes.resume(first.state) as again:
        assert await read(again, "link") == b"kept"
        assert (await again.exec("stat -c %a deep/kept.txt")).stdout == b"750\n"


async def test_a_large_workspace_is_kept_without_what_is_ephemeral(
    sandboxes: SandboxdSandboxClient, tmp_path: Path
) -> None:
    manifest = Manifest(entries={"scratch": Dir(children={"file.txt": File(content=b"given")}, ephemeral=True)})
    snapshot = LocalSnapshotSpec(base_path=tmp_path)
    first = await sandboxes.create(options=OPTIONS, snapshot=snapshot, manifest=manifest)
    await first.start()
    await first.exec("head -c 20000000 /dev/urandom > large; sha256sum large > sum; echo new > scratch/new.txt")
    await first.aclose()
    with tarfile.open(next(tmp_path.iterdir())) as archive:
        names = {name.removeprefix("./") for name in archive.getnames()}
    assert names >= {"large", "sum"}
    assert not {name for name in names if name.startswith(("scratch", "memo"))}

    async with await sandboxes.resume(first.state) as again:
        assert (await again.exec("sha256sum -c sum && cat scratch/file.txt")).stdout == b"large: OK\ngiven"


async def test_a_port_that_was_not_asked_for_is_not_exposed(sandbox: SandboxSession) -> None:
    with pytest.raises(ExposedPortUnavailableError, match="not configured"):
        await sandbox.resolve_exposed_port(8000)


async def test_an_exposed_port_leads_to_the_server(sandboxes: SandboxdSandboxClient, socket_enabled: None) -> None:
    options = SandboxdSandboxClientOptions(exposed_ports=(8000,))
    async with await sandboxes.create(options=options) as sandbox:
        await write(sandbox, "index.html", b"served")
        server = await sandbox.pty_exec_start("python3 -u -m http.server 8000", yield_time_s=20, max_output_tokens=1)
        assert server.process_id is not None
        endpoint = await sandbox.resolve_exposed_port(8000)
        assert await sandbox.resolve_exposed_port(8000) == endpoint
        async with aiohttp.ClientSession() as web, web.get(endpoint.url_for("http")) as answer:
            assert await answer.read() == b"served"


async def say(sandbox: SandboxSession, terminal: int, chars: str, expected: bytes) -> None:
    """Type into a terminal and read until the answer arrives."""
    output = b""
    for typed in (chars, *[""] * 40):
        output += (await sandbox.pty_write_stdin(session_id=terminal, chars=typed, yield_time_s=0.5)).output
        if expected in output:
            return
    pytest.fail(f"cannot see {expected!r} in {output!r}")


async def test_a_terminal_takes_input_and_an_interrupt(sandbox: SandboxSession) -> None:
    assert sandbox.supports_pty()
    opened = await sandbox.pty_exec_start("bash", shell=False, tty=True, yield_time_s=0.5)
    assert opened.process_id is not None
    await say(sandbox, opened.process_id, "x=6; echo $((x * 7))\n", b"42")
    await say(sandbox, opened.process_id, "echo asleep$x; sleep 100\n", b"asleep6")
    await say(sandbox, opened.process_id, "\x03echo back$x\n", b"back6")
    ended = await sandbox.pty_write_stdin(session_id=opened.process_id, chars="exit 5\n", yield_time_s=30)
    assert (ended.process_id, ended.exit_code) == (None, 5)


class ScriptedModel(Model):
    """Calls for one command, then repeats its output."""

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **more: Any) -> ModelResponse:
        items = input if isinstance(input, list) else []
        results = [item["output"] for item in items if item.get("type") == "function_call_output"]
        if results:
            text = ResponseOutputText(text=str(results[-1]), type="output_text", annotations=[])
            item: Any = ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            arguments = json.dumps({"cmd": "cat task.txt && echo written > answer.txt"})
            item = ResponseFunctionToolCall(call_id="c", name="exec_command", arguments=arguments, type="function_call")
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    def stream_response(self, *rest: Any, **more: Any) -> Any:
        raise NotImplementedError


async def test_an_agent_runs_a_command_in_its_sandbox(sandboxes: SandboxdSandboxClient) -> None:
    manifest = Manifest(entries={"task.txt": File(content=b"say hello")})
    agent = SandboxAgent(name="worker", model=ScriptedModel(), instructions="do the task", default_manifest=manifest)
    async with await sandboxes.create(options=OPTIONS, manifest=manifest) as sandbox:
        config = RunConfig(sandbox=SandboxRunConfig(session=sandbox), tracing_disabled=True)
        result = await Runner.run(agent, "go", run_config=config)
        assert "say hello" in str(result.final_output)
        assert await read(sandbox, "answer.txt") == b"written\n"
