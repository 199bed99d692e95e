"""The command line against a real daemon: the commands that a new user runs first."""

from __future__ import annotations

import json
import os
import pty
import re
import secrets
import shlex
import subprocess
import sys

import pytest

from sandboxd.client import Client
from tests.running import RunningDaemon, docker, newest_event, wait_for_state

pytestmark = pytest.mark.engine


def run(daemon: RunningDaemon, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "SANDBOXD_SOCKET": str(daemon.socket)}
    return subprocess.run(
        [sys.executable, "-m", "sandboxd", *words], input=stdin, capture_output=True, env=env, timeout=90, check=False
    )


def test_create_exec_tool_and_remove(daemon: RunningDaemon) -> None:
    session = f"cli-{secrets.token_hex(4)}"
    assert run(daemon, "create", session).stdout.decode().strip() == session
    try:
        done = run(daemon, "exec", session, "cat; exit 9", stdin=b"\xffhi")
        assert (done.returncode, done.stdout) == (9, b"\xffhi")
        done = run(daemon, "tool", session, "Bash", "command=echo tool")
        assert (done.returncode, done.stdout) == (0, b"tool\n")
        items = json.loads(run(daemon, "ls", "--json").stdout)["items"]
        assert session in [item["session"] for item in items]
        assert run(daemon, "events", "--json").stdout
        assert run(daemon, "gc", "--json").returncode == 0
    finally:
        assert run(daemon, "rm", session).returncode == 0
    assert run(daemon, "exec", session, "true").returncode == 125


@pytest.mark.parametrize("command", ["exec", "tool"])
def test_the_hint_after_a_containers_death_restores_the_files(daemon: RunningDaemon, command: str) -> None:
    session = f"cli-{secrets.token_hex(4)}"
    with Client(daemon.socket, tenant="acme") as client:
        sandbox = client.ensure_sandbox(session, user="ada")
        try:
            client.write_file(session, "/workspace/file", "precious")
            before = newest_event(client)
            docker("kill", str(sandbox.container))
            wait_for_state(client, session, "gone", after=before)
            words = ("true",) if command == "exec" else ("Bash", "command=echo hi")
            failed = run(daemon, command, "--tenant", "acme", session, *words)
            assert failed.returncode != 0
            steps = re.findall(r"`(.+?)`", failed.stderr.decode())
            assert steps, failed.stderr
            for step in steps:
                program, *rest = shlex.split(step)
                assert program == "sandboxd"
                assert run(daemon, *rest).returncode == 0
            assert client.get_sandbox(session).state == "ready"
            assert client.read_file(session, "/workspace/file") == b"precious"
        finally:
            client.destroy_sandbox(session)


def test_a_shell_is_a_terminal_and_ends_with_its_exit_code(daemon: RunningDaemon) -> None:
    session = f"cli-{secrets.token_hex(4)}"
    run(daemon, "create", session)
    keyboard, terminal = pty.openpty()
    shell: subprocess.Popen[bytes] | None = None
    try:
        env = {**os.environ, "SANDBOXD_SOCKET": str(daemon.socket), "TERM": "xterm"}
        shell = subprocess.Popen(
            [sys.executable, "-m", "sandboxd", "shell", session],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=env,
        )
        os.write(keyboard, b"tty && echo is-a-$((40 + 2))\n")
        seen = b""
        while b"is-a-42" not in seen:
            seen += os.read(keyboard, 4096)
        assert b"/dev/pts/" in seen
        os.write(keyboard, b"exit 6\n")
        assert shell.wait(60) == 6
    finally:
        if shell is not None and shell.poll() is None:
            shell.kill()
            shell.wait()
        os.close(keyboard)
        os.close(terminal)
        run(daemon, "rm", session)
