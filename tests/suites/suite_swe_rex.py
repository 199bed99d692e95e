"""SWE-ReX: the behaviour that its tests expect of a runtime, for shells (state, interrupts, timeouts) and files."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

from sandboxd.client import Client
from sandboxd.errors import NotFound
from sandboxd.integrations.swe_rex import SandboxdDeployment, SandboxdDeploymentConfig, SandboxdRuntime


@pytest.fixture
async def runtime(client: Client, session: str) -> AsyncIterator[SandboxdRuntime]:
    runtime = SandboxdRuntime(client, session)
    yield runtime
    await runtime.close()


@pytest.fixture
async def shell(runtime: SandboxdRuntime) -> SandboxdRuntime:
    """The runtime with its default shell open."""
    await runtime.create_session(CreateBashSessionRequest())
    return runtime


@pytest.fixture
def directory() -> str:
    return f"/tmp/{uuid.uuid4().hex}"


async def run(runtime: SandboxdRuntime, command: str, **options: object) -> BashObservation:
    return await runtime.run_in_session(BashAction.model_validate({"command": command, "timeout": 20, **options}))


async def test_the_runtime_is_alive(runtime: SandboxdRuntime) -> None:
    assert await runtime.is_alive()


@pytest.mark.parametrize(
    ("command", "is_shell"), [("echo 'hello world'", True), (["echo", "hello world"], False)], ids=["shell", "argv"]
)
async def test_a_command_is_executed(runtime: SandboxdRuntime, command: str | list[str], is_shell: bool) -> None:
    assert (await runtime.execute(Command(command=command, shell=is_shell))).stdout == "hello world\n"


@pytest.mark.parametrize("command", ["", "\n"])
async def test_an_empty_command_succeeds(runtime: SandboxdRuntime, command: str) -> None:
    assert (await runtime.execute(Command(command=command, shell=True, check=True))).exit_code == 0


async def test_a_command_that_outlives_its_timeout_is_an_error(runtime: SandboxdRuntime) -> None:
    with pytest.raises(CommandTimeoutError):
        await runtime.execute(Command(command=["sleep", "10"], timeout=0.1))


async def test_merged_output_keeps_the_order_of_writing(runtime: SandboxdRuntime) -> None:
    script = "for i in 1 2 3; do echo out$i; echo err$i >&2; done"
    done = await runtime.execute(Command(command=script, shell=True, merge_output_streams=True))
    assert done.stdout.split() == ["out1", "err1", "out2", "err2", "out3", "err3"]


async def test_a_shell_is_opened_and_closed(runtime: SandboxdRuntime) -> None:
    await runtime.create_session(CreateBashSessionRequest(session="mine"))
    await runtime.close_session(CloseBashSessionRequest(session="mine"))
    with pytest.raises(SessionDoesNotExistError):
        await runtime.close_session(CloseBashSessionRequest(session="mine"))


async def test_a_shell_that_was_never_opened_runs_nothing(runtime: SandboxdRuntime) -> None:
    with pytest.raises(SessionDoesNotExistError):
        await run(runtime, "echo hello", session="unknown")


async def test_a_shell_reports_exit_codes(shell: SandboxdRuntime) -> None:
    assert (await run(shell, "echo 'hello world'")).output.strip() == "hello world"
    assert (await run(shell, "doesnotexist", check="silent")).exit_code == 127
    assert (await run(shell, "false && true", check="silent")).exit_code == 1
    assert (await run(shell, "false || true")).exit_code == 0
    with pytest.raises(NonZeroExitCodeError):
        await run(shell, "false")


async def test_a_shell_keeps_its_directory_variables_and_functions(shell: SandboxdRuntime) -> None:
    await run(shell, "mkdir -p /tmp/kept && cd /tmp/kept && x=42 && export Y=24 && twice() { echo $(($1 * 2)); }")
    seen = await run(shell, "pwd; echo $x; sh -c 'echo $Y'; twice 21")
    assert seen.output.splitlines() == ["/tmp/kept", "42", "24", "42"]


async def test_two_shells_do_not_share_variables(runtime: SandboxdRuntime) -> None:
    for name in ("one", "two"):
        await runtime.create_session(CreateBashSessionRequest(session=name))
    await asyncio.gather(run(runtime, "x=42", session="one"), run(runtime, "y=24", session="two"))
    seen = [await run(runtime, 'echo "$x,$y"', session=name) for name in ("one", "two")]
    assert [observation.output.strip() for observation in seen] == ["42,", ",24"]


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("", []),
        ("\n\n \n", []),
        ("# echo 'a comment'", []),
        ("\n\n echo 'one' \n  \n \n echo 'two' \n\n", ["one", "two"]),
        ("echo 'one'; echo 'two'", ["one", "two"]),
        ("echo 'one' && echo 'two'", ["one", "two"]),
        ("for i in {1..3};\n do echo 'again';\n done", ["again"] * 3),
        ("echo 'one\ntwo'", ["one", "two"]),
        ("[[ $env == $env ]]", []),
        ("echo 'one';A=();echo 'two'", ["one", "two"]),
        ("(sleep 10) &", None),
        ("/usr/bin/env bash -n <<'EOF'\necho 'hello world'\nEOF", []),
        ("python <<EOF\nprint('one')\nprint('two')\nEOF", ["one", "two"]),
    ],
)
async def test_a_shell_accepts_what_bash_accepts(shell: SandboxdRuntime, command: str, lines: list[str] | None) -> None:
    seen = await run(shell, command)
    assert seen.exit_code == 0
    if lines is not None:
        assert seen.output.split("\n")[: len(lines)] == lines


async def test_wrong_syntax_is_refused_before_the_shell_sees_it(shell: SandboxdRuntime) -> None:
    with pytest.raises(BashIncorrectSyntaxError):
        await run(shell, "(a")


async def test_an_interactive_program_takes_input_and_exits(shell: SandboxdRuntime) -> None:
    await run(shell, "python", is_interactive_command=True, expect=[">>> "])
    seen = await run(shell, "print(6 * 7)", is_interactive_command=True, expect=[">>> "])
    assert "42" in seen.output
    await run(shell, "quit()\n", is_interactive_quit=True)
    assert (await run(shell, "echo back")).output.strip() == "back"


async def test_an_expected_string_that_never_comes_is_a_timeout(shell: SandboxdRuntime) -> None:
    with pytest.raises(CommandTimeoutError):
        await run(shell, "python", is_interactive_command=True, expect=["never said"], timeout=0.1)


async def test_a_command_that_timed_out_is_interrupted_and_the_shell_continues(shell: SandboxdRuntime) -> None:
    await run(shell, "kept=still")
    with pytest.raises(CommandTimeoutError):
        await run(shell, "sleep 30", timeout=0.1)
    await shell.run_in_session(BashInterruptAction(timeout=10))
    assert (await run(shell, "echo $kept")).output.strip() == "still"


async def test_a_program_that_ignores_the_interrupt_is_suspended_and_killed(shell: SandboxdRuntime) -> None:
    with pytest.raises(CommandTimeoutError):
        await run(shell, "sh -c \"trap '' INT; sleep 30\"", timeout=0.5)
    await shell.run_in_session(BashInterruptAction(timeout=1))
    assert "back" in (await run(shell, "echo back")).output


async def test_a_file_is_written_and_read_back(runtime: SandboxdRuntime, directory: str) -> None:
    await runtime.write_file(WriteFileRequest(path=f"{directory}/new/file.txt", content="content"))
    assert (await runtime.read_file(ReadFileRequest(path=f"{directory}/new/file.txt"))).content == "content"


async def test_a_missing_file_is_not_found(runtime: SandboxdRuntime) -> None:
    with pytest.raises(FileNotFoundError):
        await runtime.read_file(ReadFileRequest(path="missing.txt"))


async def test_a_large_file_is_read_in_full(runtime: SandboxdRuntime, directory: str) -> None:
    await runtime.write_file(WriteFileRequest(path=f"{directory}/large.txt", content="x" * 1024 * 1024))
    assert len((await runtime.read_file(ReadFileRequest(path=f"{directory}/large.txt"))).content) == 1024 * 1024


@pytest.mark.parametrize("errors", ["strict", "replace", "backslashreplace", "ignore"])
async def test_a_file_is_decoded_as_requested(
    runtime: SandboxdRuntime, directory: str, tmp_path: Path, errors: str
) -> None:
    local = tmp_path / "bytes.txt"
    local.write_bytes(b"before \xde after")
    await runtime.upload(UploadRequest(source_path=str(local), target_path=f"{directory}/bytes.txt"))
    request = ReadFileRequest(path=f"{directory}/bytes.txt", encoding="utf-8", errors=errors)
    if errors == "strict":
        with pytest.raises(UnicodeDecodeError):
            await runtime.read_file(request)
    else:
        assert (await runtime.read_file(request)).content == local.read_text("utf-8", errors)


async def test_a_directory_is_uploaded(runtime: SandboxdRuntime, directory: str, tmp_path: Path) -> None:
    (tmp_path / "nested").mkdir()
    (tmp_path / "one.txt").write_text("1")
    (tmp_path / "nested" / "two.txt").write_text("2")
    await runtime.upload(UploadRequest(source_path=str(tmp_path), target_path=directory))
    done = await runtime.execute(Command(command=["cat", f"{directory}/one.txt", f"{directory}/nested/two.txt"]))
    assert done.stdout == "12"


async def test_a_deployment_makes_a_sandbox_and_removes_it(client: Client) -> None:
    deployment = SandboxdDeploymentConfig(user="ada", env={"GREETING": "hello"}).get_deployment()
    with pytest.raises(DeploymentNotStartedError):
        _ = deployment.runtime
    await deployment.start()
    assert await deployment.is_alive()
    await deployment.runtime.create_session(CreateBashSessionRequest())
    assert (await run(deployment.runtime, "echo $GREETING")).output.strip() == "hello"
    [mine] = client.list_sandboxes(labels={"integration": "swe-rex"})
    await deployment.stop()
    with pytest.raises(NotFound):
        client.get_sandbox(mine.session)
    with pytest.raises(DeploymentNotStartedError):
        await deployment.is_alive()


def test_a_deployment_serves_a_program_that_starts_a_loop_for_each_call(client: Client, session: str) -> None:
    deployment = SandboxdDeployment(client=client, session=session, user="suites")
    asyncio.run(deployment.start())
    asyncio.run(deployment.runtime.create_session(CreateBashSessionRequest()))
    asyncio.run(run(deployment.runtime, "x=42"))
    assert asyncio.run(run(deployment.runtime, "echo $x")).output.strip() == "42"
    asyncio.run(deployment.stop())
    assert client.get_sandbox(session).state == "ready", "a session that was named is kept"
