"""Listing, making, moving and removing in a real container, with every trick with paths and modes."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime

import anyio
import pytest

from sandboxd.errors import (
    DirectoryNotEmpty,
    FileError,
    FileExists,
    FileNotFound,
    InvalidRequest,
    IsADirectory,
    NotADirectory,
    OutsideSandbox,
    PermissionDenied,
    ReadOnly,
    RequestError,
)
from sandboxd.models.files import decode_path, file_type
from sandboxd.runner.calls import Exec
from sandboxd.runner.client import RunnerClient
from tests.integration.runner.box import HANG_S
from tests.integration.runner.test_runner_files import TRICKS, sh
from tests.long_runs import scaled

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

MANY = scaled(30_000, 300_000)
RACES = scaled(20, 300)

Change = Callable[[RunnerClient, str], Awaitable[object]]
CHANGES: dict[str, Change] = {
    "remove": lambda runner, path: runner.remove(path),
    "remove a tree": lambda runner, path: runner.remove(path, recursive=True),
    "make": lambda runner, path: runner.make_directory(path),
    "make with parents": lambda runner, path: runner.make_directory(path, parents=True),
    "move": lambda runner, path: runner.move(path, "/workspace/elsewhere", replace=True),
    "move to": lambda runner, path: runner.move("/workspace/plain", path, replace=True),
}


async def names(runner: RunnerClient, path: str, limit: int = 10_000) -> list[str]:
    """Return the names of all pages."""
    found: list[str] = []
    after = ""
    for _ in range(1_000):
        page = await runner.list_directory(path, after, limit)
        found += [decode_path(entry.path).rpartition("/")[2] for entry in page.items]
        if not page.next:
            return found
        after = decode_path(page.next).rpartition("/")[2]
    raise AssertionError("the pages do not end")


async def test_a_directory_is_listed_with_every_type_in_order(runner: RunnerClient) -> None:
    await sh(
        runner,
        "rm -rf l; mkdir -p l/dir; cd l; printf 123 > file; ln -s /etc/shadow link; ln -s none dangling; mkfifo fifo; "
        "touch -d 1950-01-01 old; printf x > $'caf\\xe9'; chmod 751 dir; "
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('socket')\"",
    )
    page = await runner.list_directory("/workspace/l")
    found = {decode_path(entry.path).removeprefix("/workspace/l/"): entry for entry in page.items}
    assert {name: file_type(entry.mode) for name, entry in found.items()} == {
        "caf\udce9": "file",
        "dangling": "symlink",
        "dir": "directory",
        "fifo": "other",
        "file": "file",
        "link": "symlink",
        "old": "file",
        "socket": "other",
    }
    assert list(found) == sorted(found, key=os.fsencode)
    assert (found["file"].size_bytes, found["dir"].mode & 0o777) == (3, 0o751)
    assert found["old"].modified_at == datetime(1950, 1, 1, tzinfo=UTC)
    assert page.next is None


async def test_stat_follows_links_unless_told_not_to(runner: RunnerClient) -> None:
    await sh(runner, "rm -rf st; mkdir st; cd st; printf 12345 > file; ln -s file link; ln -s none dangling")
    assert (await runner.stat("/workspace/st/link")).size_bytes == 5
    assert file_type((await runner.stat("/workspace/st/link", follow=False)).mode) == "symlink"
    with pytest.raises(FileNotFound):
        await runner.stat("/workspace/st/dangling")
    assert file_type((await runner.stat("/workspace/st/dangling", follow=False)).mode) == "symlink"
    assert (await runner.stat("/etc/passwd")).size_bytes > 0
    with pytest.raises(OutsideSandbox):
        await runner.stat("/proc/self", follow=False)


async def test_a_file_older_than_1970_is_described_and_read(runner: RunnerClient) -> None:
    await sh(runner, "echo x > old; touch -d 1950-01-01 old")
    assert (await runner.stat("/workspace/old")).modified_at == datetime(1950, 1, 1, tzinfo=UTC)
    async with runner.read_file("/workspace/old") as reader:
        assert [piece async for piece in reader] == [b"x\n"]


async def test_a_name_of_any_bytes_is_listed_moved_and_removed(runner: RunnerClient) -> None:
    await sh(runner, "rm -rf raw; mkdir -p raw; cd raw; mkdir $'d\\xff'; echo x > $'d\\xff'/$'\\x80\\n'")
    assert await names(runner, "/workspace/raw") == ["d\udcff"]
    assert await names(runner, "/workspace/raw/d\udcff") == ["\udc80\n"]
    await runner.move("/workspace/raw/d\udcff/\udc80\n", "/workspace/raw/\udc81")
    async with runner.read_file("/workspace/raw/\udc81") as reader:
        assert [piece async for piece in reader] == [b"x\n"]
    await runner.remove("/workspace/raw/\udc81")
    await runner.remove("/workspace/raw/d\udcff", recursive=True)
    assert await names(runner, "/workspace/raw") == []


@pytest.mark.parametrize("trick", TRICKS)
async def test_a_path_trick_is_removed_and_moved_without_being_followed(runner: RunnerClient, trick: str) -> None:
    await sh(runner, f"rm -rf trick moved; {TRICKS[trick]}")
    before = await sh(runner, "stat -c '%F %i' trick; ls -ldi /etc /etc/shadow /etc/passwd")
    with anyio.fail_after(HANG_S):
        await runner.move("/workspace/trick", "/workspace/moved")
        assert await sh(runner, "stat -c '%F %i' moved; ls -ldi /etc /etc/shadow /etc/passwd") == before
        await runner.remove("/workspace/moved", recursive=True)
        with pytest.raises(FileNotFound):
            await runner.remove("/workspace/moved")
    assert (await sh(runner, "ls -ldi /etc /etc/shadow /etc/passwd")) in before


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("target", ["/etc", "/proc/self/root/etc", "/run/sandboxd", "/", "/proc/1/cwd", "/dev/shm"])
async def test_nothing_is_changed_through_a_link_outside(runner: RunnerClient, change: str, target: str) -> None:
    await sh(runner, f"rm -rf outside /dev/shm/*; echo x > plain; echo x > /dev/shm/passwd; ln -s {target} outside")
    for name in ("passwd", "secret", "workspace", "new"):
        with anyio.fail_after(HANG_S), pytest.raises((OutsideSandbox, PermissionDenied, InvalidRequest)):
            await CHANGES[change](runner, f"/workspace/outside/{name}")
    with pytest.raises((OutsideSandbox, PermissionDenied, InvalidRequest)):
        await runner.list_directory("/workspace/outside")
    assert await sh(runner, "cat plain; ls /dev/shm; rm outside") == "x\npasswd\n"


@pytest.mark.parametrize("change", CHANGES)
async def test_nothing_in_the_memo_directory_is_changed(runner: RunnerClient, change: str) -> None:
    await sh(runner, "echo x > plain; ln -sfn memo to-memo; ln -sfn /workspace/memo/NOTES.md to-notes")
    before = await sh(runner, "find memo | sort")
    for path in ("/workspace/memo/NOTES.md", "/workspace/to-memo/NOTES.md", "/workspace/memo/new", "/workspace/memo"):
        if change == "make with parents" and path == "/workspace/memo":
            continue
        with anyio.fail_after(HANG_S), pytest.raises(ReadOnly, match="read-only"):
            await CHANGES[change](runner, path)
    assert await sh(runner, "find memo | sort; cat plain") == f"{before}x\n"
    await sh(runner, "rm -rf elsewhere to-memo to-notes")


@pytest.mark.parametrize("root", ["/workspace", "/workspace/", "/tmp", "/var/tmp", "/skills"])
async def test_a_root_is_neither_removed_nor_moved(runner: RunnerClient, root: str) -> None:
    await sh(runner, "echo x > plain")
    for change in ("remove", "remove a tree", "move", "move to"):
        with pytest.raises(InvalidRequest, match="one of the sandbox's own directories"):
            await CHANGES[change](runner, root)
    assert await sh(runner, "cat plain") == "x\n"


@pytest.mark.parametrize(
    "path",
    [
        *("", "relative", "/workspace/a\0b", "/workspace/\ud800", "/workspace/" + "x/" * 4000),
        *("/workspace/" + "x" * 256, "/workspace/d/..", "/workspace/d/.", "/workspace/d/../..", "/workspace/../etc/x"),
    ],
)
async def test_an_invalid_path_changes_nothing(runner: RunnerClient, path: str) -> None:
    await sh(runner, "mkdir -p d; echo x > plain")
    for change in CHANGES.values():
        with anyio.fail_after(HANG_S), pytest.raises((RequestError, FileError), match=r"^cannot"):
            await change(runner, path)
    assert await sh(runner, "cat plain; ls -d d") == "x\nd\n"


async def test_a_name_of_255_bytes_works(runner: RunnerClient) -> None:
    long = "/workspace/" + "x" * 255
    await runner.make_directory(long)
    await runner.move(long, "/workspace/" + "\u00e9" * 127)
    await runner.remove("/workspace/" + "\u00e9" * 127)


async def test_a_directory_is_made_once_or_with_its_parents(runner: RunnerClient) -> None:
    await sh(runner, "rm -rf m; echo x > plain; ln -sfn /workspace to-dir; ln -sfn none dangling; ln -sfn /etc to-etc")
    with pytest.raises(FileNotFound):
        await runner.make_directory("/workspace/m/n")
    made, is_new = await runner.make_directory("/workspace/m/n", parents=True)
    assert (file_type(made.mode), made.path, is_new) == ("directory", "/workspace/m/n", True)
    assert (await runner.make_directory("/workspace/m/n", parents=True))[1] is False
    assert (await runner.make_directory("/workspace/to-dir", parents=True))[1] is False
    assert (await runner.make_directory("/workspace", parents=True))[1] is False
    for path, parents in [
        *(("/workspace/m/n", False), ("/workspace", False), ("/workspace/to-dir", False)),
        *(("/workspace/plain", False), ("/workspace/plain", True), ("/workspace/dangling", False)),
        *(("/workspace/dangling", True), ("/workspace/to-etc", True)),
    ]:
        with pytest.raises(FileExists):
            await runner.make_directory(path, parents=parents)
    with pytest.raises(NotADirectory):
        await runner.make_directory("/workspace/plain/x", parents=True)
    assert await sh(runner, "stat -c '%a %U' m/n; rm -r m to-dir dangling to-etc") == "755 agent\n"


async def test_a_move_replaces_only_on_request(runner: RunnerClient) -> None:
    await sh(runner, "rm -rf v; mkdir -p v/full v/empty v/dir; cd v; echo 1 > one; echo 2 > two; echo x > full/x")
    at = "/workspace/v"
    for target in ("two", "empty", "full", "one"):
        with pytest.raises(FileExists, match="set replace"):
            await runner.move(f"{at}/one", f"{at}/{target}")
    with pytest.raises(IsADirectory):
        await runner.move(f"{at}/one", f"{at}/empty", replace=True)
    with pytest.raises(NotADirectory):
        await runner.move(f"{at}/dir", f"{at}/one", replace=True)
    with pytest.raises(DirectoryNotEmpty):
        await runner.move(f"{at}/dir", f"{at}/full", replace=True)
    with pytest.raises(InvalidRequest, match="into itself"):
        await runner.move(f"{at}/dir", f"{at}/dir/inside")
    for source, target in (("none", "three"), ("one", "none/three")):
        with pytest.raises(FileNotFound):
            await runner.move(f"{at}/{source}", f"{at}/{target}")
    with pytest.raises(InvalidRequest, match="another filesystem; run `mv`"):
        await runner.move(f"{at}/one", "/tmp/one")
    moved = await runner.move(f"{at}/one", f"{at}/two", replace=True)
    assert (moved.path, moved.size_bytes) == (f"{at}/two", 2)
    await runner.move(f"{at}/dir", f"{at}/empty", replace=True)
    assert await sh(runner, "cd v; ls; cat two") == "empty\nfull\ntwo\n1\n"


async def test_only_recursive_removes_a_directory_that_is_not_empty(runner: RunnerClient) -> None:
    await sh(runner, "rm -rf r; mkdir -p r/full r/empty; echo x > r/full/x; mkfifo r/fifo")
    for name in ("empty", "fifo", "full/x"):
        await runner.remove(f"/workspace/r/{name}")
    await sh(runner, "echo x > r/full/x")
    with pytest.raises(DirectoryNotEmpty, match="set recursive"):
        await runner.remove("/workspace/r/full")
    await runner.remove("/workspace/r", recursive=True)
    with pytest.raises(FileNotFound):
        await runner.remove("/workspace/r", recursive=True)
    with pytest.raises(NotADirectory):
        await runner.remove("/workspace/plain/x")


async def test_permissions_apply_as_for_the_agent_and_the_error_names_the_path(runner: RunnerClient) -> None:
    await sh(runner, "chmod -R u+rwx p 2> /dev/null; rm -rf p; mkdir -p p/shut/dir p/blind; cd p; echo x > shut/file")
    await sh(runner, "cd p; echo x > blind/file; echo x > shut/dir/file; chmod 555 shut; chmod 300 blind")
    for act in (
        lambda: runner.remove("/workspace/p/shut/file"),
        lambda: runner.make_directory("/workspace/p/shut/new"),
        lambda: runner.move("/workspace/p/shut/file", "/workspace/p/file"),
        lambda: runner.move("/workspace/p/blind/file", "/workspace/p/shut/file2"),
        lambda: runner.list_directory("/workspace/p/blind"),
    ):
        with pytest.raises(PermissionDenied):
            await act()
    with pytest.raises(PermissionDenied, match=r"^cannot remove /workspace/p/(shut/(dir|file)|blind): permission"):
        await runner.remove("/workspace/p", recursive=True)
    await sh(runner, "chmod 700 p/blind p/shut")
    await runner.remove("/workspace/p", recursive=True)


async def test_a_large_directory_is_listed_in_pages_and_removed_while_other_calls_run(runner: RunnerClient) -> None:
    await sh(runner, f"rm -rf big; mkdir big; cd big; seq -f %07g {MANY} | xargs touch")
    page = await runner.list_directory("/workspace/big", limit=10)
    assert [entry.path[-7:] for entry in page.items] == [f"{number:07}" for number in range(1, 11)]
    assert await names(runner, "/workspace/big") == [f"{number:07}" for number in range(1, MANY + 1)]

    left: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: runner.remove("/workspace/big", recursive=True))
        while not left or int(left[-1]):
            left.append(await sh(runner, "ls -U big 2> /dev/null | wc -l"))
    assert len(left) > 1


async def test_a_cancelled_removal_stops(runner: RunnerClient) -> None:
    await sh(runner, f"rm -rf big; mkdir big; cd big; seq -f %07g {MANY} | xargs touch")
    first = await sh(runner, "ls -U big | head -n 1")  # removed first, so a removal is seen to have begun at once
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: runner.remove("/workspace/big", recursive=True))
        with anyio.fail_after(HANG_S), suppress(FileNotFound):
            while True:
                await runner.stat(f"/workspace/big/{first.strip()}")
        tasks.cancel_scope.cancel()
    before, left = MANY, int(await sh(runner, "ls -U big | wc -l"))
    with anyio.fail_after(HANG_S):
        while left != before:  # the step under way when the cancellation arrives is finished first
            before, left = left, int(await sh(runner, "ls -U big | wc -l"))
    assert left > 0
    await runner.remove("/workspace/big", recursive=True)


async def test_excess_removals_are_refused_and_the_others_finish(runner: RunnerClient) -> None:
    await sh(runner, "rm -rf few; for i in $(seq 12); do mkdir -p few/$i; (cd few/$i; seq 5000 | xargs touch); done")
    refused = 0

    async def remove(number: int) -> None:
        nonlocal refused
        try:
            await runner.remove(f"/workspace/few/{number}", recursive=True)
        except RequestError as error:
            assert (error.code, error.retryable) == ("request.busy", True)
            refused += 1

    async with anyio.create_task_group() as tasks:
        for number in range(1, 13):
            tasks.start_soon(remove, number)
    assert len(await names(runner, "/workspace/few")) == refused
    assert 1 <= refused <= 4  # fewer if a removal ends before the last request arrives
    await runner.remove("/workspace/few", recursive=True)


async def test_a_removal_that_races_with_creation_ends(runner: RunnerClient) -> None:
    creator = await runner.start_process(
        Exec("while :; do mkdir -p race/a/b 2> /dev/null; touch race/$RANDOM race/a/b/$RANDOM 2> /dev/null; done")
    )
    removed = 0
    with anyio.fail_after(HANG_S):
        while removed < RACES:
            try:
                await runner.remove("/workspace/race", recursive=True)
                removed += 1
            except (DirectoryNotEmpty, FileNotFound):
                continue
    await runner.kill_process(creator.id)
    await sh(runner, "mkdir -p race")
    await runner.remove("/workspace/race", recursive=True)
