"""`shell`: a terminal in a sandbox, through a background process with a tty."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Session, Tenant
from sandboxd.cli.output import print_json
from sandboxd.client import Client
from sandboxd.errors import InvalidRequest, NotFound, SandboxdError

WAIT_S = 20.0


def shell(
    session: Session,
    command: Annotated[
        str, typer.Option("--command", "-c", help="The command to run in the terminal.")
    ] = "exec bash -l",
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Open a terminal in a session's sandbox. It ends when its program does, with the program's exit code.

    Example: sandboxd shell demo
    """
    if not sys.stdin.isatty() and not json:
        raise InvalidRequest("cannot open a shell: stdin is not a terminal; use `sandboxd exec` in scripts")
    with connected(daemon, tenant, json, session=session) as client:
        env = {"TERM": os.environ.get("TERM", "xterm-256color")}
        process = client.start_process(session, command, env=env, tty=True)
        if json:
            print_json({"process": process.id, "session": session})
            return
        try:
            with _raw_terminal(), _window_size(client, session, process.id), _keyboard(client, session, process.id):
                code = _show_output(client, session, process.id)
        finally:
            _end(client, session, process.id)
    raise typer.Exit(code)


def _show_output(client: Client, session: str, process: str) -> int:
    offset = 0
    while True:
        output = client.read_process(session, process, offset=offset, wait_s=WAIT_S)
        os.write(sys.stdout.fileno(), output.data)
        offset = output.next_offset
        if not output.process.running and offset >= output.process.output_bytes:
            return output.process.exit_code or 0


def _end(client: Client, session: str, process: str) -> None:
    try:
        client.kill_process(session, process)
    except NotFound:
        return  # the sandbox is gone as well


@contextmanager
def _raw_terminal() -> Iterator[None]:
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin, termios.TCSADRAIN)  # the default would discard typed-ahead input
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def _window_size(client: Client, session: str, process: str) -> Iterator[None]:
    """Send the window size to the process, now and whenever it changes."""

    def resize(number: int = 0, frame: FrameType | None = None) -> None:
        size = shutil.get_terminal_size()
        client.resize_process(session, process, size.lines, size.columns)

    resize()
    before = signal.signal(signal.SIGWINCH, resize)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


@contextmanager
def _keyboard(client: Client, session: str, process: str) -> Iterator[None]:
    """Send typed input from a thread until the block ends."""
    stop_reader, stop_writer = os.pipe()

    def forward() -> None:
        keyboard = sys.stdin.fileno()
        while True:
            readable, _, _ = select.select([keyboard, stop_reader], [], [])
            if stop_reader in readable:
                return
            typed = os.read(keyboard, 4096)
            try:
                client.write_process(session, process, typed, eof=not typed)
            except SandboxdError:
                return  # the process has ended; the output loop reports how
            if not typed:
                return

    thread = threading.Thread(target=forward, name="keyboard")
    thread.start()
    try:
        yield
    finally:
        os.write(stop_writer, b"x")
        thread.join()
        os.close(stop_reader)
        os.close(stop_writer)
