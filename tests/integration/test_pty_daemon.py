"""Terminals of a real daemon: on every engine, over TLS, across a drain, a kill and a restart of the daemon."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import Client, Sandbox, Terminal
from sandboxd.client.errors import DaemonUnreachable
from tests.certificates import make_pair
from tests.local_terminal import LocalTerminal
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine

TOKEN = "0123456789abcdef" * 2


@pytest.fixture(scope="module", params=["docker", "bubblewrap"])
def daemon(request: pytest.FixtureRequest, engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    is_docker = request.param == "docker"
    running = RunningDaemon(image=agent_image) if is_docker else RunningDaemon(engine="bubblewrap")
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def sandbox(daemon: RunningDaemon) -> Iterator[Sandbox]:
    with Sandbox.create("demo", socket=daemon.socket) as sandbox:
        yield sandbox
    with daemon.client() as client:
        client.destroy_sandbox("demo")


def read_until(terminal: Terminal, wanted: bytes) -> bytes:
    seen = b""
    for piece in terminal:
        seen += piece
        if wanted in seen:
            return seen
    raise AssertionError(f"the terminal ended without {wanted!r}: {seen[-2000:]!r}")


def local(daemon: RunningDaemon, *words: str) -> LocalTerminal:
    return LocalTerminal(*words, env={"SANDBOXD_SOCKET": str(daemon.socket)})


def test_a_terminal_is_resized_interrupted_and_ends(sandbox: Sandbox) -> None:
    with sandbox.pty.create("exec bash --norc", rows=30, columns=100) as terminal:
        terminal.send("stty size\n")
        read_until(terminal, b"30 100")
        terminal.resize(40, 120)
        terminal.send("stty size; tty\n")
        read_until(terminal, b"40 120")
        # The shell that prints is in the foreground already, so the interrupt cannot arrive before its job does.
        terminal.send("sh -c 'echo begun-$((1+1)); exec sleep 600'\n")
        read_until(terminal, b"begun-2")
        terminal.send(b"\x03")
        terminal.send("echo ended with $?; exit 7\n")
        read_until(terminal, b"ended with 130")
        assert terminal.wait().exit_code == 7


def test_a_process_outlives_drain_and_kill_of_the_daemon_and_is_attached_to_again(
    daemon: RunningDaemon, sandbox: Sandbox
) -> None:
    terminal = sandbox.pty.create("exec bash --norc")
    terminal.send("kept=yes; echo begun-$((1+1))\n")
    read_until(terminal, b"begun-2")
    for stop in (daemon.terminate, daemon.kill):
        ended: list[BaseException] = []

        def read(ended: list[BaseException] = ended) -> None:
            try:
                read_until(terminal, b"never shown")
            except (DaemonUnreachable, AssertionError) as error:
                ended.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        assert stop() in (0, None), "an attached terminal does not hold up the drain"  # I11
        reader.join(60)
        assert isinstance(ended[0], DaemonUnreachable)
        daemon.start()
        with daemon.client() as client:
            client.ensure_sandbox("demo", "default")  # waits until it is adopted
        terminal.send("echo kept=$kept-$((2+2))\n")
        read_until(terminal, b"kept=yes-4")
    terminal.kill()


def test_a_shell_whose_daemon_is_killed_is_attached_to_again_after_its_restart(
    daemon: RunningDaemon, sandbox: Sandbox
) -> None:
    with local(daemon, "shell", "demo", "--command", "exec bash --norc") as first:
        first.type(b"kept=yes; echo begun-$((1+1))\n")
        first.wait_for(b"begun-2")
        daemon.kill()
        first.wait_for(b"`sandboxd attach demo p1` continues")
        assert first.wait() == 1
        assert first.is_restored()
    daemon.start()
    with daemon.client() as client:
        client.ensure_sandbox("demo", "default")
    with local(daemon, "attach", "demo", "p1") as second:
        second.wait_for(b"begun-2")
        second.type(b"echo $kept-$((2+2))\n")
        second.wait_for(b"yes-4")
        second.type(b"\x10\x11")
        second.wait_for(b"continues]")
        assert second.wait() == 0
    assert [process.running for process in sandbox.client.list_processes("demo")] == [True]


def test_a_terminal_works_over_tls_with_a_token(
    agent_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = make_pair(tmp_path, "server")
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    token_file.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    daemon = RunningDaemon(
        image=agent_image, tcp=f"127.0.0.1:{port}", token_file=token_file, tls_cert=cert, tls_key=key
    )
    try:
        daemon.start()
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        with Client(url=f"https://127.0.0.1:{port}", token=TOKEN) as client:
            client.ensure_sandbox("demo", "u1")
            sandbox = Sandbox.connect("demo", client=client)
            with sandbox.pty.create("stty raw -echo; echo ready; exec cat") as terminal:
                read_until(terminal, b"ready")
                # Both directions at once, in two threads, on one TLS connection.
                sender = threading.Thread(target=terminal.send, args=(bytes(range(256)) * 8_000,))
                sender.start()
                size = 0
                for piece in terminal:
                    size += len(piece)
                    if size >= 256 * 8_000 - 2:
                        break
                sender.join()
            env = {"SANDBOXD_URL": f"https://127.0.0.1:{port}", "SANDBOXD_TOKEN": TOKEN}
            with LocalTerminal("shell", "demo", "--command", "exec bash --norc", env=env) as shell:
                shell.type(b"echo over-$((1+1)); exit 5\n")
                shell.wait_for(b"over-2")
                assert shell.wait() == 5
        assert daemon.terminate() == 0
    finally:
        daemon.stop()
