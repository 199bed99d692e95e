"""File routes over the real API and runner: ranges, archives and watches, and the clients' calls for them."""

from __future__ import annotations

import http.client
import io
import os
import socket
import stat
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import anyio
import pytest

from sandboxd.api.byte_range import ByteRange
from sandboxd.client import AsyncClient, AsyncSandbox, Client, Copied, FileEvent, Sandbox
from sandboxd.errors import Busy, FileNotFound, InvalidRequest, NotADirectory, RangeNotSatisfiable, ReadOnly
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

PATIENCE_S = 60
T = TypeVar("T")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path) as world, AsyncClient(world.socket, tenant="acme") as client:
        await client.ensure_sandbox("s", "ada")
        yield world


@pytest.fixture
async def sandbox(world: World) -> AsyncIterator[AsyncSandbox]:
    async with AsyncClient(world.socket, tenant="acme") as client:
        yield AsyncSandbox(client, await client.get_sandbox("s"))


async def in_thread(work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work)


def ask(
    world: World,
    method: str,
    route: str,
    headers: dict[str, str] | None = None,
    body: bytes | None = None,
    **query: str,
) -> tuple[int, Any, bytes]:
    connection = http.client.HTTPConnection("localhost", timeout=PATIENCE_S)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(world.socket))
    path = f"/v1/tenants/acme/sessions/s/files{route}?{urlencode(query)}"
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    try:
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def tar_of(*entries: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in entries:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("bytes=0-4", ByteRange(0, 5)),
        ("bytes=7-", ByteRange(7, None)),
        ("bytes=-3", ByteRange(None, 3)),
        ("bytes=0-0", ByteRange(0, 1)),
        ("bytes=4-2", None),
        ("bytes=-", None),
        ("bytes=a-b", None),
        ("bytes=0-1,3-4", None),
        ("lines=0-1", None),
        ("bytes=" + "9" * 19 + "-", None),
        ("", None),
    ],
)
def test_a_range_is_one_pair_of_numbers(text: str, wanted: ByteRange | None) -> None:
    assert ByteRange.parse(text) == wanted


@pytest.mark.parametrize(
    ("wanted", "content", "where"),
    [
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=-300", b"0123456789", "bytes 0-9/10"),
        ("bytes=8-100", b"89", "bytes 8-9/10"),
        ("bytes=0-", b"0123456789", "bytes 0-9/10"),
    ],
)
async def test_a_range_is_answered_with_its_bytes(world: World, wanted: str, content: bytes, where: str) -> None:
    (world.workspace("s") / "digits").write_bytes(b"0123456789")
    status, headers, body = await in_thread(lambda: ask(world, "GET", "", {"Range": wanted}, path="/workspace/digits"))
    assert (status, body, headers["content-range"]) == (206, content, where)
    assert headers["content-length"] == str(len(content))


async def test_a_range_that_cannot_be_met_or_read_is_no_part_of_the_file(world: World) -> None:
    (world.workspace("s") / "digits").write_bytes(b"0123456789")
    (world.workspace("s") / "empty").touch()
    for wanted, path, size in (
        ("bytes=10-", "digits", 10),
        ("bytes=999999999999999999-", "digits", 10),
        ("bytes=-0", "digits", 10),
        ("bytes=0-", "empty", 0),
        ("bytes=-5", "empty", 0),
    ):
        status, headers, _ = await in_thread(
            partial(ask, world, "GET", "", {"Range": wanted}, path=f"/workspace/{path}")
        )
        assert (status, headers["content-range"]) == (416, f"bytes */{size}"), wanted
    for header in ({"Range": "bytes=0-1,4-5"}, {"Range": "bytes=5-2"}, {"Range": "bytes=0-1", "If-Range": '"tag"'}):
        status, headers, body = await in_thread(partial(ask, world, "GET", "", header, path="/workspace/digits"))
        assert (status, body, headers["accept-ranges"]) == (200, b"0123456789", "bytes")
    status, headers, _ = await in_thread(lambda: ask(world, "HEAD", "", path="/workspace/digits"))
    assert (status, headers["accept-ranges"]) == (200, "bytes")
    status, _, _ = await in_thread(lambda: ask(world, "GET", "", {"Range": "bytes=0-1"}, path="/workspace"))
    assert status == 409


async def test_the_client_reads_a_part_of_a_file(world: World, sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("digits", "0123456789")
    assert await sandbox.files.read("digits", offset=3) == "3456789"
    assert await sandbox.files.read("digits", "bytes", offset=3, length=2) == b"34"
    assert await sandbox.files.read("digits", length=0) == ""
    assert await sandbox.files.read("digits", offset=10, length=5) == ""
    with pytest.raises(InvalidRequest):
        await sandbox.files.read("digits", offset=-1)
    with pytest.raises(RangeNotSatisfiable):
        async with sandbox.client.open_file("s", "/workspace/digits", offset=10):
            pass


async def test_an_archive_goes_out_and_in(world: World) -> None:
    (world.workspace("s") / "tree" / "sub").mkdir(parents=True)
    (world.workspace("s") / "tree" / "sub" / "file").write_bytes(b"x" * 300_000)
    status, headers, data = await in_thread(lambda: ask(world, "GET", "/archive", path="/workspace/tree"))
    assert (status, headers["content-type"]) == (200, "application/x-tar")
    status, _, body = await in_thread(lambda: ask(world, "PUT", "/archive", body=data, path="/workspace/a/copy"))
    assert (status, body) == (200, b'{"entries":2,"bytes":300000}')
    assert (world.workspace("s") / "a" / "copy" / "sub" / "file").read_bytes() == b"x" * 300_000
    keyed = {"Idempotency-Key": "once"}
    for replayed in (None, "true"):
        status, headers, _ = await in_thread(
            lambda: ask(world, "PUT", "/archive", keyed, tar_of(("n", b"1")), path="/workspace/k")
        )
        assert (status, headers["idempotency-replayed"]) == (200, replayed)


async def test_archives_of_clients_that_left_are_given_up(world: World, sandbox: AsyncSandbox) -> None:
    """A sandbox has room for four archives at once, so a fifth would be refused if they stayed."""
    (world.workspace("s") / "big").write_bytes(bytes(20_000_000))

    async def half() -> AsyncIterator[bytes]:
        yield tar_of(("whole", b"1"), ("cut", b"x" * 3_000_000))[:2_000_000]
        raise ValueError("the source failed")

    async def try_until_free(attempt: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await attempt()
            except Busy:  # the daemon has not noticed yet that earlier clients left
                await anyio.sleep(0.1)
            else:
                return

    async def read_some() -> None:
        async with sandbox.client.open_archive("s", "/workspace/big") as pieces:
            await anext(aiter(pieces))

    async def write_some() -> None:
        with pytest.raises(ValueError, match="the source failed"):
            await sandbox.client.write_archive("s", "/workspace/half", half())

    with anyio.fail_after(PATIENCE_S):
        for _ in range(6):
            await try_until_free(read_some)
            await try_until_free(write_some)
        while sorted(os.listdir(world.workspace("s") / "half")) != ["whole"]:
            await anyio.sleep(0.05)


async def test_archives_that_fail_say_why(world: World) -> None:
    for path, body, status, words in (
        ("/workspace/x", tar_of(("fine", b""), ("../bad", b"")), 400, "../bad"),
        ("/workspace/x", b"not a tar" * 100, 400, "cannot read the archive"),
        ("/workspace/memo", tar_of(("a", b"")), 403, "read-only"),
        ("/workspace", tar_of(("memo/a", b"")), 403, "read-only"),
        ("/etc", tar_of(("a", b"")), 403, "outside"),
    ):
        found, _, answer = await in_thread(partial(ask, world, "PUT", "/archive", body=body, path=path))
        assert (found, words in answer.decode()) == (status, True), answer
    for path, status in (("/workspace/none", 404), ("/etc", 403)):
        found, _, _ = await in_thread(partial(ask, world, "GET", "/archive", path=path))
        assert found == status


def fill(top: Path) -> None:
    (top / "sub" / "empty").mkdir(parents=True)
    (top / "run.sh").write_text("#!/bin/sh\n")
    (top / "run.sh").chmod(0o750)
    os.utime(top / "run.sh", (1_000_000_000, 1_000_000_000))
    (top / "sub" / "link").symlink_to("../run.sh")
    (top / "sub" / "big").write_bytes(os.urandom(500_000))


def described(top: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(top.rglob("*")):
        kind = path.readlink() if path.is_symlink() else path.is_dir() or path.read_bytes()
        found[str(path.relative_to(top))] = kind
    return found


async def test_both_clients_copy_trees_and_files_both_ways(world: World, tmp_path: Path) -> None:
    source = tmp_path / "source"
    fill(source)
    async with AsyncClient(world.socket, tenant="acme") as client:
        files = AsyncSandbox(client, await client.get_sandbox("s")).files
        assert await files.upload(source, "project") == Copied(5, 500_010)
        assert described(world.workspace("s") / "project") == described(source)
        assert await files.download("project", tmp_path / "back") == Copied(5, 500_010)
        assert await files.upload(source / "run.sh", "deep/one.sh") == Copied(1, 10)
        assert await files.download("deep/one.sh", str(tmp_path / "one.sh")) == Copied(1, 10)
    assert described(tmp_path / "back") == described(source)
    for path in (tmp_path / "back" / "run.sh", tmp_path / "one.sh", world.workspace("s") / "deep" / "one.sh"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o750
        assert path.stat().st_mtime == 1_000_000_000

    def synchronously() -> None:
        with Client(world.socket, tenant="acme") as client:
            files = Sandbox(client, client.get_sandbox("s")).files
            assert files.upload(str(source), "again") == Copied(5, 500_010)
            assert files.download("again", tmp_path / "again") == Copied(5, 500_010)
            with pytest.raises(InvalidRequest, match="no such file"):
                files.upload(tmp_path / "none", "x")
            with pytest.raises(FileNotFound):
                files.download("none", tmp_path / "none")

    await in_thread(synchronously)
    assert described(tmp_path / "again") == described(source)


async def test_a_download_writes_nothing_outside_its_target(
    world: World, sandbox: AsyncSandbox, tmp_path: Path
) -> None:
    top = world.workspace("s") / "hostile"
    (top / "sub").mkdir(parents=True)
    (top / "absolute").symlink_to("/etc/passwd")
    (top / "upwards").symlink_to("../../outside")
    (top / "sub" / "fine").symlink_to("../file")
    (top / "file").write_text("fine")
    (top / "file").chmod(0o4755)
    copied = await sandbox.files.download("hostile", tmp_path / "target")
    assert sorted(copied.skipped) == ["absolute", "upwards"]
    assert set(described(tmp_path / "target")) == {"file", "sub", "sub/fine"}
    assert stat.S_IMODE((tmp_path / "target" / "file").stat().st_mode) == 0o755


async def test_a_watch_reports_what_happens_after_ready(world: World, sandbox: AsyncSandbox) -> None:
    seen = []
    with anyio.fail_after(PATIENCE_S):
        events = sandbox.files.watch_dir(recursive=True)
        async for event in events:
            seen.append((event.event, event.path, event.type))
            if event.event == "ready":
                await sandbox.files.write("new/file", "1")
            if (event.event, event.path) == ("created", "/workspace/new/file"):
                await sandbox.files.remove("new", recursive=True)
            if (event.event, event.path) == ("removed", "/workspace/new"):
                break
        await events.aclose()
    assert seen[0] == ("ready", "/workspace", "directory")
    assert ("created", "/workspace/new", "directory") in seen
    assert seen.count(("created", "/workspace/new/file", "file")) == 1
    assert ("removed", "/workspace/new/file", None) in seen
    assert not any(".sandboxd-" in path for _, path, _ in seen)


async def test_a_watch_of_a_file_or_of_nothing_is_refused(sandbox: AsyncSandbox) -> None:
    await sandbox.files.write("file", "1")
    for path, error in (("file", NotADirectory), ("none", FileNotFound)):
        with pytest.raises(error):
            async for _ in sandbox.files.watch_dir(path):
                pass


async def test_a_watch_ends_when_its_directory_or_its_sandbox_does(world: World, sandbox: AsyncSandbox) -> None:
    async def follow(path: str, then: Callable[[], Any]) -> list[str]:
        kinds: list[str] = []
        async for event in sandbox.files.watch_dir(path):
            kinds.append(event.event)
            if event.event == "ready":
                await then()
        return kinds

    with anyio.fail_after(PATIENCE_S):
        await sandbox.files.make_dir("short")
        assert await follow("short", lambda: sandbox.files.remove("short")) == ["ready", "removed"]
        async with anyio.create_task_group() as tasks:

            async def remove() -> None:
                tasks.start_soon(sandbox.kill)

            assert await follow("/workspace", remove) == ["ready"]


async def test_watches_are_limited_and_freed_when_clients_leave(world: World, sandbox: AsyncSandbox) -> None:
    async def begin() -> AsyncGenerator[FileEvent, None]:
        while True:
            watch = sandbox.files.watch_dir()
            try:
                assert (await anext(watch)).event == "ready"
            except Busy:  # the daemon has not noticed yet that earlier clients left
                await anyio.sleep(0.1)
            else:
                return watch

    with anyio.fail_after(PATIENCE_S):
        for _ in range(2):
            watches = [await begin() for _ in range(8)]
            with pytest.raises(Busy, match="8 watches are open"):
                await anext(sandbox.files.watch_dir())
            for watch in watches:
                await watch.aclose()


async def test_open_watches_do_not_delay_the_end_of_the_daemon(world: World, sandbox: AsyncSandbox) -> None:
    with anyio.fail_after(PATIENCE_S):
        events = sandbox.files.watch_dir()
        assert (await anext(events)).event == "ready"
        world.manager.end_event_streams()
        with pytest.raises(StopAsyncIteration):
            await anext(events)


async def test_the_memo_mirror_cannot_be_uploaded(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("forged")
    with pytest.raises(ReadOnly):
        await sandbox.files.upload(tmp_path / "file", "memo/NOTES.md")
