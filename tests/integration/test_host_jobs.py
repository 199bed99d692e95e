"""Host jobs reach live containers: commands, clients, a program on the same store, an editor on its files.

Each test ends with a process inside that waits for the new text with `cat`.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import Client
from tests.faults.stores import ROOT, store_url
from tests.plain_store import PLACE
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine

NOTES = "/workspace/memo/session/NOTES.md"
USER = "/workspace/memo/user/USER.md"
HANG_S = 30

JOB = """
import anyio, sys, memo

async def write(url, owner, scope, name, text):
    async with memo.open_store(url) as store:
        await store.write_memory_document("default", owner, scope, name, text)

anyio.run(write, *sys.argv[1:])
"""


@pytest.fixture(scope="module")
def files(engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    """A daemon whose store is a directory of plain files."""
    running = RunningDaemon(image=agent_image)
    running.settings["store"] = f"file://{running.data.parent / 'memory'}"
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def user() -> str:
    return f"u-{secrets.token_hex(4)}"


@pytest.fixture
def client(files: RunningDaemon) -> Iterator[Client]:
    with files.client() as client:
        yield client


@pytest.fixture
def session(client: Client, user: str) -> Iterator[str]:
    name = f"s-{secrets.token_hex(4)}"
    client.ensure_sandbox(name, user)
    client.write_memo(name, "NOTES.md", "at first\n")
    yield name
    client.destroy_sandbox(name)


def wait_inside(client: Client, session: str, path: str, text: str) -> None:
    """Have a process inside read the file until it holds this text."""
    loop = 'until [ "$(cat "$0" 2>&1)" = "$1" ]; do :; done'
    done = client.exec(session, ["timeout", str(HANG_S), "sh", "-c", loop, path, text.rstrip("\n")], timeout_s=60)
    assert done.exit_code == 0, f"inside is still {client.exec(session, ['cat', path]).stdout[:200]!r}"


def run(daemon: RunningDaemon, *words: str, stdin: str = "", **environment: str) -> str:
    env = {**os.environ, "SANDBOXD_SOCKET": str(daemon.socket), **environment}
    done = subprocess.run(
        [sys.executable, "-m", "sandboxd", *words], input=stdin, env=env, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_job(url: str, *words: str) -> None:
    """Another Python program opens the same store and writes to it without notifying the daemon."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", JOB, url, *words], env=env, check=True, timeout=60)


def test_commands_on_the_host_reach_the_container(
    files: RunningDaemon, client: Client, session: str, user: str, tmp_path: Path
) -> None:
    run(files, "memo", "put", session, "NOTES.md", stdin="by hand\n")
    wait_inside(client, session, NOTES, "by hand\n")
    run(files, "memo", "append", "--user", user, "USER.md", stdin="likes tea\n")
    wait_inside(client, session, USER, "likes tea\n")
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/hand/an editor/" "$1"\n')
    editor.chmod(0o755)
    run(files, "memo", "edit", session, "NOTES.md", EDITOR=str(editor), VISUAL="")
    wait_inside(client, session, NOTES, "by an editor\n")
    run(files, "memo", "restore", session, "NOTES.md", "1")
    wait_inside(client, session, NOTES, "at first\n")
    assert [entry.revision for entry in client.memo_history(session, "NOTES.md")] == [4, 3, 2, 1]


def test_a_program_on_the_same_store_reaches_the_container(
    files: RunningDaemon, client: Client, session: str, user: str
) -> None:
    url = str(files.settings["store"])
    run_job(url, session, "session", "NOTES.md", "from a job\n")
    wait_inside(client, session, NOTES, "from a job\n")
    run_job(url, user, "user", "USER.md", "consolidated\n")
    wait_inside(client, session, USER, "consolidated\n")
    assert client.read_memo(user, "USER.md", scope="user").text == "consolidated\n"


def test_an_editor_that_renames_reaches_the_container(files: RunningDaemon, client: Client, session: str) -> None:
    notes = files.data.parent / "memory" / "tenants" / "default" / "sessions" / session / "NOTES.md"
    draft = notes.with_name("NOTES.md~new")
    draft.write_text("saved under another name, then renamed\n")
    draft.rename(notes)
    wait_inside(client, session, NOTES, "saved under another name, then renamed\n")
    assert client.read_memo(session, "NOTES.md").text == "saved under another name, then renamed\n"


def test_an_editor_that_writes_in_place_reaches_the_container(
    files: RunningDaemon, client: Client, session: str
) -> None:
    notes = files.data.parent / "memory" / "tenants" / "default" / "sessions" / session / "NOTES.md"
    for text in ("in place\n", "in place, and longer than before\n"):
        with notes.open("r+") as file:  # like an editor that keeps the file's inode
            file.truncate(0)
            file.write(text)
        wait_inside(client, session, NOTES, text)
    assert client.read_memo(session, "NOTES.md").text == "in place, and longer than before\n"


# Specification: 001.59
def test_a_store_without_change_reports_is_read_again_on_refresh(
    engine_socket: str, agent_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain provider has no feed: `sandboxd refresh` and the clients' refresh_* are how its changes arrive."""
    url = store_url("plain", tmp_path / "memory", monkeypatch)
    daemon = RunningDaemon(image=agent_image, store=url)
    try:
        daemon.start()
        with daemon.client() as client:
            for session in ("s1", "s2"):
                client.ensure_sandbox(session, "ada")
            run_job(url, "s1", "session", "NOTES.md", "one\n")
            assert run(daemon, "refresh", "s1") == "refreshed 1 file\n"
            wait_inside(client, "s1", NOTES, "one\n")
            run_job(url, "s1", "session", "NOTES.md", "two\n")
            assert client.refresh_memo_mirror("s1", NOTES) == 1
            wait_inside(client, "s1", NOTES, "two\n")
            run_job(url, "ada", "user", "USER.md", "three\n")
            assert client.refresh_user_memo_mirror_for_all_sessions("ada", "USER.md") == 2
            for session in ("s1", "s2"):
                wait_inside(client, session, USER, "three\n")
            run_job(url, "ada", "user", "USER.md", "four\n")
            # A text sent with the request is only a hint: the store's text counts.
            assert client.refresh_user_memo_mirror_for_all_sessions("ada", "USER.md", "not the store's") == 2
            wait_inside(client, "s2", USER, "four\n")
            assert os.environ[PLACE] not in client.exec("s1", "env; cat /proc/self/mountinfo").stdout
            client.tool("s1", "Edit", {"file_path": NOTES, "old_string": "two", "new_string": "by a tool"})
            wait_inside(client, "s1", NOTES, "by a tool\n")
    finally:
        daemon.stop()
