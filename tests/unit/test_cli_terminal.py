"""`shell`, `attach` and `logs` in a user's terminal, against the API on a fake engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio.to_thread
import pytest

from sandboxd.cli.terminal import DETACH_KEYS, DetachKeys, parse_keys
from sandboxd.client import Client
from sandboxd.errors import InvalidRequest
from tests.local_terminal import LocalTerminal
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path) as world:
        await anyio.to_thread.run_sync(lambda: run(world, "create", "demo"))
        yield world


def run(world: World, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "SANDBOXD_SOCKET": str(world.socket), "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", "sandboxd", *words], input=stdin, capture_output=True, env=env, timeout=60, check=False
    )


def terminal(world: World, *words: str, rows: int = 24, columns: int = 80) -> LocalTerminal:
    return LocalTerminal(*words, env={"SANDBOXD_SOCKET": str(world.socket)}, rows=rows, columns=columns)


def is_running(world: World, process: str = "p1") -> bool:
    with Client(world.socket) as client:
        return client.read_process("demo", process).process.running


def test_detach_keys_are_found_across_reads_and_other_keys_pass() -> None:
    keys = DetachKeys(parse_keys(DETACH_KEYS))
    assert keys.feed(b"ls\n") == (b"ls\n", False)
    assert keys.feed(b"a\x10") == (b"a", False)
    assert keys.feed(b"b") == (b"\x10b", False)
    assert keys.feed(b"\x10\x10") == (b"\x10", False)
    assert keys.feed(b"\x11more") == (b"", True)
    assert DetachKeys(b"").feed(b"\x10\x11") == (b"\x10\x11", False)


def test_detach_keys_are_letters_with_or_without_ctrl() -> None:
    assert parse_keys("ctrl-p,ctrl-q") == b"\x10\x11"
    assert parse_keys("ctrl-a,d") == b"\x01d"
    assert parse_keys("") == b""
    for wrong in ("ctrl-", "escape", "ctrl-p,", "ctrl-1"):
        with pytest.raises(InvalidRequest):
            parse_keys(wrong)


async def test_a_shell_has_the_window_s_size_follows_it_and_ends_with_the_exit_code(world: World) -> None:
    def talk() -> None:
        with terminal(world, "shell", "demo", "--command", "exec bash --norc", rows=31, columns=99) as local:
            local.type(b"stty size\n")
            local.wait_for(b"31 99")
            local.resize(41, 111)
            local.type(b"while [ \"$(stty size)\" != '41 111' ]; do sleep 0.05; done; echo new-$((1+1))\n")
            local.wait_for(b"new-2")
            local.type(b"exit 6\n")
            assert local.wait() == 6
            assert local.is_restored()
        assert not is_running(world)

    await anyio.to_thread.run_sync(talk)


async def test_a_detached_shell_keeps_running_and_attach_shows_its_screen_and_continues(world: World) -> None:
    def talk() -> None:
        with terminal(world, "shell", "demo", "--command", "exec bash --norc") as local:
            local.type(b"x=kept; echo first-$((1+1))\n")
            local.wait_for(b"first-2")
            local.type(b"\x10")
            local.type(b"\x11")
            local.wait_for(b"`sandboxd attach demo p1` continues")
            assert local.wait() == 0
            assert local.is_restored()
        assert is_running(world)
        with terminal(world, "attach", "demo", "p1", rows=20, columns=70) as local:
            local.wait_for(b"first-2")
            local.type(b"echo $x; stty size\n")
            local.wait_for(b"kept")
            local.wait_for(b"20 70")
            local.wait_for(b"bash-")  # the prompt: only now is Ctrl-D a key for the shell
            local.type(b"\x04")
            assert local.wait() == 0
        assert not is_running(world), "Ctrl-D ends a shell"

    await anyio.to_thread.run_sync(talk)


async def test_a_program_outlives_the_window_and_the_command_that_show_it(world: World) -> None:
    def talk() -> None:
        with terminal(world, "shell", "demo", "--command", "echo begun; exec cat") as local:
            local.wait_for(b"begun")
            local.hang_up()
            local.wait()
        assert is_running(world, "p1")
        with terminal(world, "attach", "demo", "p1") as local:
            local.wait_for(b"begun")
            local.send_signal(signal.SIGTERM)
            local.wait_for(b"continues]")
            assert local.wait() == 0
            assert local.is_restored()
        assert is_running(world, "p1")

    await anyio.to_thread.run_sync(talk)


async def test_a_shell_whose_daemon_stops_says_how_to_attach_again(world: World) -> None:
    with terminal(world, "shell", "demo", "--command", "echo begun; exec cat") as local:
        await anyio.to_thread.run_sync(local.wait_for, b"begun")
        world.stop_server()
        await anyio.to_thread.run_sync(local.wait_for, b"`sandboxd attach demo p1` continues")
        assert await anyio.to_thread.run_sync(local.wait) == 1
        assert local.is_restored()


async def test_attach_without_a_terminal_passes_stdin_and_its_end(world: World) -> None:
    def talk() -> None:
        with Client(world.socket) as client:
            client.start_process("demo", "cat; exit 3")
        attached = run(world, "attach", "demo", "p1", stdin=b"\xffbytes" * 50_000)
        assert (attached.returncode, attached.stdout) == (3, b"\xffbytes" * 50_000)
        again = run(world, "attach", "demo", "p1", "--no-stdin")
        assert (again.returncode, again.stdout[-5:]) == (3, b"bytes"), "one that has ended is shown"
        described = json.loads(run(world, "attach", "demo", "p1", "--json").stdout)
        assert (described["id"], described["running"], described["tty"]) == ("p1", False, False)
        missing = run(world, "attach", "demo", "p9")
        assert (missing.returncode, missing.stderr.decode().splitlines()[0]) == (1, "cannot find process 'p9'.")
        assert run(world, "attach", "demo", "p1", "--detach-keys", "nope").returncode == 2

    await anyio.to_thread.run_sync(talk)


async def test_logs_print_all_the_tail_or_the_rest_and_follow_until_the_end(world: World) -> None:
    def talk() -> None:
        with Client(world.socket) as client:
            client.start_process("demo", "seq 10; read line; echo got $line >&2; exit 2")
        with Client(world.socket) as client:
            while client.read_process("demo", "p1", wait_s=10).process.output_bytes < 21:
                pass
        assert run(world, "logs", "demo", "p1").stdout == b"".join(b"%d\n" % number for number in range(1, 11))
        assert run(world, "logs", "demo", "p1", "--tail", "2").stdout == b"9\n10\n"
        assert run(world, "logs", "demo", "p1", "--tail", "0").stdout == b""
        assert run(world, "logs", "demo", "p1", "--offset", "18").stdout == b"10\n"
        assert run(world, "logs", "demo", "p1", "--offset", "18", "--tail", "1").returncode == 2
        env = {**os.environ, "SANDBOXD_SOCKET": str(world.socket)}
        words = [sys.executable, "-m", "sandboxd", "logs", "demo", "p1", "--follow", "--json", "--tail", "1"]
        following = subprocess.Popen(words, env=env, stdout=subprocess.PIPE)
        assert following.stdout is not None
        first = json.loads(following.stdout.readline())
        assert (first["data"], first["offset"], first["running"]) == ("10\n", 18, True)
        with Client(world.socket) as client:
            client.write_process("demo", "p1", "it\n")
        out, _ = following.communicate(timeout=60)
        lines = [json.loads(line) for line in out.splitlines()]
        assert "".join(line["data"] for line in lines) == "got it\n"
        assert (lines[-1]["running"], lines[-1]["exit_code"], following.returncode) == (False, 2, 0)

    await anyio.to_thread.run_sync(talk)
