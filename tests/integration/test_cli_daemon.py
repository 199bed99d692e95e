"""The command line against a real daemon: the loop a person goes through on the first day."""

from __future__ import annotations

import json
import os
import pty
import secrets
import subprocess
import sys

import pytest

from tests.running import RunningDaemon

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
