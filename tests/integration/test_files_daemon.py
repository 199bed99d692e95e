"""Files of a real daemon on every engine: errors, names, /var/tmp, and a large file on a small disk."""

from __future__ import annotations

import http.client
import json
import secrets
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from sandboxd.client import Client
from sandboxd.errors import (
    FileError,
    FileNotFound,
    IsADirectory,
    NotADirectory,
    OutsideSandbox,
    PermissionDenied,
    ReadOnly,
    WorkspaceFull,
)
from tests.ordinary_user import UID
from tests.running import RunningDaemon, wait_for_state

pytestmark = pytest.mark.engine

ENGINES = ("docker", "bubblewrap", "bubblewrap of an ordinary user")
DISK_MB = 16
SCRIPT = "#!/bin/sh\necho ran from $0\n"


@pytest.fixture(scope="module", params=ENGINES)
def running(request: pytest.FixtureRequest, engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    engine, _, ordinary = request.param.partition(" ")
    limits = f'{{"disk_mb": {DISK_MB}}}'
    running = RunningDaemon(engine=engine, uid=UID if ordinary else None, idle_timeout_s=0, limits=limits)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def client(running: RunningDaemon) -> Iterator[Client]:
    with running.client() as client:
        yield client


@pytest.fixture
def session(client: Client) -> Iterator[str]:
    name = f"s-{secrets.token_hex(4)}"
    client.ensure_sandbox(name, user="ada")
    yield name
    client.destroy_sandbox(name)


def sh(client: Client, session: str, script: str) -> str:
    done = client.exec(session, script)
    assert done.exit_code == 0, done.stderr
    return done.stdout


class FileRoutes:
    """Raw requests to the file routes of one session."""

    def __init__(self, running: RunningDaemon, session: str) -> None:
        self._socket = str(running.socket)
        self._path = f"/v1/tenants/default/sessions/{session}/files"

    def send(self, method: str, verb: str = "", body: Any = None, **query: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(self._socket)
        content = None if body is None else json.dumps(body)
        headers = {"idempotency-key": secrets.token_hex(8)} if method in ("DELETE", "POST") else {}
        connection.request(method, f"{self._path}{verb}?{urlencode(query)}", content, headers)
        return connection

    def ask(self, method: str, verb: str = "", body: Any = None, **query: str) -> tuple[int, Any]:
        """Return the status, and the JSON of the answer or its code if it is a problem; for HEAD its headers."""
        connection = self.send(method, verb, body, **query)
        try:
            response = connection.getresponse()
            raw = response.read()
        finally:
            connection.close()
        if method == "HEAD":
            return response.status, dict(response.getheaders())
        answer: Any = json.loads(raw) if raw else None
        return response.status, answer["code"] if response.status >= 400 else answer

    def names(self, path: str) -> list[str]:
        status, answer = self.ask("GET", path=path, list="true")
        assert status == 200
        return [item["path"] for item in answer["items"]]


@pytest.fixture
def files(running: RunningDaemon, session: str) -> FileRoutes:
    return FileRoutes(running, session)


def test_names_are_listed_made_moved_and_removed(client: Client, session: str, files: FileRoutes) -> None:
    sh(client, session, "mkdir d; printf 123 > d/file; ln -s /etc/shadow d/link; mkfifo d/fifo; echo x > $'d/\\xff'")
    status, answer = files.ask("GET", path="/workspace/d", list="true")
    assert (status, answer["next"]) == (200, None)
    assert [(item["path"], item["type"]) for item in answer["items"]] == [
        ("/workspace/d/fifo", "other"),
        ("/workspace/d/file", "file"),
        ("/workspace/d/link", "symlink"),
        ("file:///workspace/d/%FF", "file"),
    ]
    assert files.ask("GET", path="/workspace/d/file", stat="true") == (200, answer["items"][1])
    status, headers = files.ask("HEAD", path="/workspace/d/file")
    assert (status, headers["content-length"], headers["x-file-type"]) == (200, "3", "file")
    assert files.ask("HEAD", path="/workspace/none")[0] == 404
    assert files.ask("DELETE", path="file:///workspace/d/%FF") == (204, None)
    assert files.ask("POST", "/mkdir", {"path": "/workspace/new/deep", "parents": True})[0] == 201
    status, moved = files.ask("POST", "/move", {"from": "/workspace/d/file", "to": "/workspace/new/deep/file"})
    assert (status, moved["path"], moved["size_bytes"]) == (200, "/workspace/new/deep/file", 3)
    assert files.ask("DELETE", path="/workspace/d", recursive="true") == (204, None)
    assert files.names("/workspace") == ["/workspace/memo", "/workspace/new"]
    assert sh(client, session, "cat new/deep/file; stat -c %U new") == "123agent\n"


def test_each_failure_of_a_change_has_its_own_code(client: Client, session: str, files: FileRoutes) -> None:
    sh(client, session, "mkdir -p d/e shut; echo x > d/f; echo x > shut/f; chmod 555 shut; ln -s memo m; ln -s / out")
    mkdir, move = "/mkdir", "/move"
    for method, verb, body, query, expected in [
        ("GET", "", None, {"path": "/workspace/none", "list": "true"}, (404, "file.not_found")),
        ("GET", "", None, {"path": "/workspace/d/f", "list": "true"}, (409, "file.not_a_directory")),
        ("GET", "", None, {"path": "/etc", "list": "true"}, (403, "request.outside_sandbox")),
        ("GET", "", None, {"path": "/workspace/out", "list": "true"}, (403, "request.outside_sandbox")),
        ("DELETE", "", None, {"path": "/workspace/none"}, (404, "file.not_found")),
        ("DELETE", "", None, {"path": "/workspace/d"}, (409, "file.not_empty")),
        ("DELETE", "", None, {"path": "/workspace", "recursive": "true"}, (400, "request.invalid")),
        ("DELETE", "", None, {"path": "/var/tmp", "recursive": "true"}, (400, "request.invalid")),
        ("DELETE", "", None, {"path": "/workspace/shut/f"}, (403, "file.permission_denied")),
        ("DELETE", "", None, {"path": "/workspace/shut", "recursive": "true"}, (403, "file.permission_denied")),
        ("DELETE", "", None, {"path": "/workspace/memo", "recursive": "true"}, (403, "file.read_only")),
        ("DELETE", "", None, {"path": "/workspace/m/session", "recursive": "true"}, (403, "file.read_only")),
        ("DELETE", "", None, {"path": "/workspace/out/usr", "recursive": "true"}, (403, "request.outside_sandbox")),
        ("POST", mkdir, {"path": "/workspace/d"}, {}, (409, "file.exists")),
        ("POST", mkdir, {"path": "/workspace/d/f/x", "parents": True}, {}, (409, "file.not_a_directory")),
        ("POST", mkdir, {"path": "/workspace/m/x"}, {}, (403, "file.read_only")),
        ("POST", move, {"from": "/workspace/d/f", "to": "/workspace/d/e"}, {}, (409, "file.exists")),
        ("POST", move, {"from": "/workspace/d/f", "to": "/tmp/f"}, {}, (400, "request.invalid")),
        ("POST", move, {"from": "/workspace/m/session", "to": "/workspace/x"}, {}, (403, "file.read_only")),
        ("POST", move, {"from": "/workspace/d/f", "to": "/workspace/m/x"}, {}, (403, "file.read_only")),
        (
            *("POST", move, {"from": "/workspace/d/f", "to": "/workspace/d/e", "replace": True}, {}),
            (409, "file.is_directory"),
        ),
    ]:
        assert files.ask(method, verb, body, **query) == expected, (method, verb, body, query)
    assert sh(client, session, "chmod 755 shut; find d shut m | sort; ls /usr | grep -c bin") == (
        "d\nd/e\nd/f\nm\nshut\nshut/f\n2\n"
    )


def test_each_failure_of_a_path_has_its_own_error(client: Client, session: str) -> None:
    sh(client, session, "mkdir dir; echo x > plain; echo x > locked; chmod 444 locked; echo x > secret; chmod 0 secret")
    refusals: list[tuple[type[FileError | OutsideSandbox], str, str]] = [
        (FileNotFound, "GET", "/workspace/none"),
        (IsADirectory, "GET", "/workspace/dir"),
        (IsADirectory, "PUT", "/workspace/dir"),
        (IsADirectory, "PUT", "/workspace"),
        (NotADirectory, "GET", "/workspace/plain/file"),
        (NotADirectory, "PUT", "/workspace/plain/file"),
        (PermissionDenied, "GET", "/workspace/secret"),
        (PermissionDenied, "PUT", "/workspace/locked"),
        (ReadOnly, "PUT", "/workspace/memo/NOTES.md"),
        (ReadOnly, "PUT", "/skills/a"),
        (OutsideSandbox, "PUT", "/etc/os-release"),
        (OutsideSandbox, "GET", "/proc/1/status"),
    ]
    for kind, verb, path in refusals:
        with pytest.raises(kind, match=f"^cannot .*{path}|^cannot use this path") as refused:
            client.read_file(session, path) if verb == "GET" else client.write_file(session, path, b"x")
        assert type(refused.value) is kind, (verb, path)
    for kind, cwd in ((FileNotFound, "/workspace/none"), (NotADirectory, "/workspace/plain")):
        with pytest.raises(kind, match=rf"^cannot run in {cwd}: "):
            client.exec(session, "true", cwd=cwd)
        with pytest.raises(kind, match=rf"^cannot run in {cwd}: "):
            client.start_process(session, "true", cwd=cwd)
    assert sh(client, session, "cat locked; ls") == "x\ndir\nlocked\nmemo\nplain\nsecret\n"


def test_tools_answer_with_a_sentence_that_a_model_can_act_on(client: Client, session: str) -> None:
    sh(client, session, "mkdir dir; echo x > locked; chmod 444 locked; mkdir shut; echo x > shut/open; chmod 555 shut")
    for tool, arguments, code, advice in [
        ("Read", {"file_path": "/workspace/none"}, "file.not_found", "list the files with Glob or Bash"),
        ("Read", {"file_path": "/workspace/dir"}, "file.is_directory", "name a file in it"),
        ("Read", {"file_path": "/proc/1/environ"}, "request.outside_sandbox", "every user may read"),
        ("Write", {"file_path": "/workspace/locked", "contents": "y"}, "file.permission_denied", "change its mode"),
        ("Write", {"file_path": "/workspace/shut/new", "contents": "y"}, "file.permission_denied", "of its directory"),
        ("Write", {"file_path": "/skills/a", "contents": "y"}, "file.read_only", "write under /workspace"),
        (
            "Edit",
            {"file_path": "/workspace/locked", "old_string": "x", "new_string": "y"},
            "file.permission_denied",
            "change its mode",
        ),
        (
            "Glob",
            {"pattern": "*", "path": "/workspace/locked"},
            "file.not_a_directory",
            "use its parent directory",
        ),
        ("Grep", {"pattern": "x", "path": "/workspace/none"}, "file.not_found", "list the files with Glob or Bash"),
        ("Bash", {"command": "true", "working_directory": "/workspace/none"}, "file.not_found", "no such directory"),
    ]:
        result = client.tool(session, tool, arguments)
        assert (result.ok, result.details.get("code")) == (False, code), (tool, result)
        assert result.content.startswith("cannot ")
        assert advice in result.content
    assert client.tool(session, "Write", {"file_path": "/workspace/shut/open", "contents": "new"}).ok
    assert sh(client, session, "cat locked shut/open; chmod 755 shut") == "x\nnew"


def test_a_file_that_every_user_may_read_is_read_and_never_written(client: Client, session: str) -> None:
    content = sh(client, session, "cat /etc/os-release")
    assert client.read_file(session, "/etc/os-release").decode() == content
    read = client.tool(session, "Read", {"file_path": "/etc/os-release", "limit": 1})
    assert read.content.startswith(f"     1\t{content.splitlines()[0]}")
    for tool, arguments in (
        ("Write", {"file_path": "/etc/os-release", "contents": "x"}),
        ("Edit", {"file_path": "/etc/os-release", "old_string": "N", "new_string": "M"}),
    ):
        result = client.tool(session, tool, arguments)
        assert (result.ok, result.details["code"]) == (False, "request.outside_sandbox")


def test_programs_run_from_var_tmp_and_not_from_tmp(client: Client, session: str) -> None:
    for place in ("/var/tmp", "/tmp"):
        client.write_file(session, f"{place}/script", SCRIPT.encode())
    sh(client, session, "chmod 755 /var/tmp/script /tmp/script")
    assert sh(client, session, "/var/tmp/script") == "ran from /var/tmp/script\n"
    assert client.exec(session, ["/tmp/script"]).exit_code == 126
    assert sh(client, session, "cd /var/tmp && pwd && mktemp -p /var/tmp x.XXXX > /dev/null && stat -c %a .") == (
        "/var/tmp\n1777\n"
    )
    assert client.tool(session, "Grep", {"pattern": "ran", "path": "/var/tmp"}).content == "/var/tmp/script"
    assert client.tool(session, "Glob", {"pattern": "scr*", "path": "/var/tmp"}).content == "/var/tmp/script"
    assert client.exec(session, "pwd", cwd="/var/tmp").stdout == "/var/tmp\n"


def test_var_tmp_shares_the_quota_of_the_workspace_and_is_not_seen_in_it(client: Client, session: str) -> None:
    client.write_file(session, "/var/tmp/large", b"x" * 5_000_000)
    assert sh(client, session, "ls -A /workspace") == "memo\n"
    assert "tmp" not in sh(client, session, "ls -A /workspace/memo").split()
    assert sh(client, session, "stat -c %d /workspace /var/tmp | uniq | wc -l") == "1\n"
    # The pause gives the daemon of an ordinary user, which has no quota from the kernel, the time to measure.
    write = "head -c 1M /dev/zero > /var/tmp/$i"
    script = f"i=0; while {write}; do i=$((i + 1)); [ $i -lt 400 ] || exit 7; sleep 0.05; done; echo full"
    try:
        done = client.exec(session, script, timeout_s=60)
    except WorkspaceFull:
        return
    assert (done.stdout, "No space left" in done.stderr) == ("full\n", True)
    with pytest.raises(WorkspaceFull):
        client.write_file(session, "/workspace/more", b"x" * 2_000_000)


def test_var_tmp_is_kept_and_removed_with_the_workspace(running: RunningDaemon, client: Client) -> None:
    client.ensure_sandbox("kept", user="ada")
    client.write_file("kept", "/var/tmp/file", b"kept")
    client.exec("kept", "echo x > /workspace/file")
    running.kill()
    running.start(idle_timeout_s=1)
    with running.client() as other:
        wait_for_state(other, "kept", "hibernated", after=0)
    running.terminate()
    running.start()  # without an idle time, which could pass between two calls
    with running.client() as other:
        other.ensure_sandbox("kept", user="ada")
        assert other.read_file("kept", "/var/tmp/file") == b"kept"
        other.destroy_sandbox("kept")
    assert running.sandbox_files() == []
    assert [mount for mount in running.mounts() if "workspaces" in mount] == []


def test_a_large_file_is_overwritten_on_a_disk_without_room_for_both(client: Client, session: str) -> None:
    large = 10_000_000  # of 16 MB
    for letter in (b"a", b"b", b"c"):
        assert client.write_file(session, "/workspace/large", letter * large).size_bytes == large
        assert sh(client, session, "head -c 1 large; tail -c 1 large; wc -c < large; ls -A") == (
            f"{letter.decode() * 2}{large}\nlarge\nmemo\n"
        )


def test_python_exists_under_both_names(client: Client, session: str) -> None:
    for command in ("python --version", ["python", "--version"], ["python3", "--version"]):
        assert client.exec(session, command).stdout.startswith("Python 3.")
    sh(client, session, "printf '#!/usr/bin/env python\\nprint(6 * 7)\\n' > s; chmod 755 s")
    assert sh(client, session, "./s") == "42\n"


@pytest.mark.parametrize("engine", ["docker", "bubblewrap"])
def test_programs_run_from_tmp_when_the_setting_allows_it(engine_socket: str, agent_image: str, engine: str) -> None:
    daemon = RunningDaemon(engine=engine, tmp_exec="true", pool=1)
    try:
        with daemon.start().client() as client:
            for session in ("first", "second"):  # one of them from the pool
                client.ensure_sandbox(session, user="ada")
                client.write_file(session, "/tmp/script", SCRIPT.encode())
                assert sh(client, session, "chmod 755 /tmp/script; /tmp/script") == "ran from /tmp/script\n"
                assert "nosuid,nodev" in sh(client, session, "grep ' /tmp tmpfs ' /proc/mounts")
                client.destroy_sandbox(session)
    finally:
        daemon.stop()
