"""File calls in a real container: what they do, and every trick with paths."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Literal

import anyio
import pytest

from sandboxd.errors import (
    FileError,
    FileNotFound,
    InvalidRequest,
    IsADirectory,
    NotADirectory,
    NotFound,
    OutsideSandbox,
    PermissionDenied,
    ReadOnly,
    RequestError,
    SandboxdError,
    WorkspaceFull,
)
from sandboxd.runner.calls import Exec, Grep
from sandboxd.runner.client import RunnerClient
from sandboxd.runner.protocol import RUNNER_TARGET
from tests.integration.runner.box import HANG_S

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

Verb = Callable[[RunnerClient, str], Awaitable[object]]


async def sh(runner: RunnerClient, script: str) -> str:
    with anyio.fail_after(HANG_S):
        result = await runner.exec(Exec(script))
    assert result.exit_code == 0, result.stderr
    return result.stdout.decode()


async def read_all(runner: RunnerClient, path: str, offset: int = 0, length: int | None = None) -> bytes:
    with anyio.fail_after(HANG_S):
        async with runner.read_file(path, offset, length) as reader:
            return b"".join([piece async for piece in reader])


VERBS: dict[str, Verb] = {
    "read": read_all,
    "write": lambda runner, path: runner.write_file(path, b"overwritten"),
    "text": lambda runner, path: runner.read_text(path),
    "edit": lambda runner, path: runner.edit_file(path, "root", "toor"),
    "grep": lambda runner, path: runner.grep(Grep("x", path)),
}
TRICKS = {
    "link to a secret": "ln -sfn /etc/shadow trick",
    "link to our memory": "ln -sfn /proc/self/mem trick",
    "link to our environment": "ln -sfn /proc/1/environ trick",
    "link to our status": "ln -sfn /proc/1/status trick",
    "link to the reader's own status": "ln -sfn /proc/self/status trick",
    "link through our root": "ln -sfn /proc/1/root/etc/passwd trick",
    "link through our descriptors": "ln -sfn /proc/self/fd/0 trick",
    "link to our program": "ln -sfn /proc/self/exe trick",
    "link to a knob": "ln -sfn /sys/kernel/mm/transparent_hugepage/enabled trick",
    "link to shared memory": "echo x > /dev/shm/x; ln -sfn /dev/shm/x trick",
    "link to the runner's own code": f"ln -sfn {RUNNER_TARGET}/server.py trick",
    "link to a directory outside": "ln -sfn /etc trick",
    "link to the secret file": "ln -sfn /run/sandboxd/secret trick",
    "link to a device": "ln -sfn /dev/zero trick",
    "link in a circle": "ln -sfn trick trick",
    "fifo": "mkfifo trick",
    "socket": "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('trick')\"",
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("trick", TRICKS)
async def test_no_trick_with_a_path_succeeds_or_hangs(runner: RunnerClient, trick: str, verb: str) -> None:
    await sh(runner, f"rm -rf trick dirlink; {TRICKS[trick]}")
    with anyio.fail_after(HANG_S), pytest.raises((RequestError, FileError), match=r"^cannot"):
        await VERBS[verb](runner, "/workspace/trick")
    assert await sh(runner, "ls -A | grep -c sandboxd- || true") == "0\n"


@pytest.mark.parametrize("verb", ["read", "write", "text", "edit"])
async def test_a_directory_is_not_a_file(runner: RunnerClient, verb: str) -> None:
    await sh(runner, "mkdir -p directory")
    with pytest.raises(IsADirectory, match=r"^cannot .* it is a directory; name a file in it$"):
        await VERBS[verb](runner, "/workspace/directory")


@pytest.mark.parametrize("root", ["/workspace", "/tmp", "/var/tmp"])
async def test_writing_to_a_root_says_that_it_is_a_directory(runner: RunnerClient, root: str) -> None:
    with pytest.raises(IsADirectory):
        await runner.write_file(root, b"x")


@pytest.mark.parametrize("verb", [*VERBS, "stat", "glob"])
@pytest.mark.parametrize(
    "path",
    [
        *("/etc/shadow", "/workspace/../etc/shadow", "/proc/self/mem", "/proc/self/status", "/proc/1/cmdline"),
        *("/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled", "/dev/null", "/dev/zero", "/etc", "/"),
        *("/workspacex", "/var/tmpx", "/run/sandboxd/socket", "/run/sandboxd/secret", f"{RUNNER_TARGET}/server.py"),
    ],
)
async def test_a_path_outside_is_refused(runner: RunnerClient, path: str, verb: str) -> None:
    verbs: dict[str, Verb] = {
        **VERBS,
        "stat": lambda runner, path: runner.stat(path),
        "glob": lambda runner, path: runner.glob("*", path),
    }
    with pytest.raises((OutsideSandbox, FileNotFound, PermissionDenied, IsADirectory)):
        await verbs[verb](runner, path)


PUBLIC = ("/etc/os-release", "/etc/passwd", "/usr/bin/env", "/usr/lib/os-release")


@pytest.mark.parametrize("path", [*PUBLIC, "/workspace/public"])
async def test_a_file_that_every_user_may_read_can_be_read_anywhere(runner: RunnerClient, path: str) -> None:
    await sh(runner, "ln -sfn /etc/os-release public")
    content = await read_all(runner, path)
    assert hashlib.sha256(content).hexdigest() == (await sh(runner, f"sha256sum < {path}")).split()[0]
    assert (await runner.stat(path)).size_bytes == len(content)
    if path != "/usr/bin/env":
        assert (await runner.read_text(path)).lines == tuple(content.decode().splitlines())


@pytest.mark.parametrize("path", [*PUBLIC, "/workspace/public"])
async def test_a_readable_file_outside_is_neither_written_nor_searched(runner: RunnerClient, path: str) -> None:
    await sh(runner, "ln -sfn /etc/os-release public")
    before = await sh(runner, f"sha256sum < {path}")
    for verb in ("write", "edit", "grep"):
        with pytest.raises(OutsideSandbox):
            await VERBS[verb](runner, path)
    assert await sh(runner, f"sha256sum < {path}; readlink public") == f"{before}/etc/os-release\n"


@pytest.mark.parametrize("path", ["", "relative", "/workspace/a\0b", "/workspace/\ud800", "/workspace/" + "x/" * 4000])
async def test_an_invalid_path_is_refused(runner: RunnerClient, path: str) -> None:
    for verb in VERBS.values():
        with pytest.raises(RequestError, match=r"^cannot"):
            await verb(runner, path)


async def test_a_sparse_terabyte_is_refused_with_its_size(runner: RunnerClient) -> None:
    await sh(runner, "truncate -s 1T sparse")
    for verb in ("read", "edit"):
        with pytest.raises(InvalidRequest, match="1099511627776"):
            await VERBS[verb](runner, "/workspace/sparse")
    with pytest.raises(InvalidRequest, match="binary"):
        await runner.read_text("/workspace/sparse")
    await sh(runner, "rm sparse")


async def test_a_hard_link_is_replaced_and_never_written_through(runner: RunnerClient) -> None:
    await sh(runner, "echo original > one; ln -f one two")
    await runner.write_file("/workspace/two", b"changed")
    assert await sh(runner, "cat one two") == "original\nchanged"


async def test_a_file_is_written_and_read_back(runner: RunnerClient) -> None:
    content = bytes(range(256)) * 20_000
    written = await runner.write_file("/workspace/deep/er/file", content)
    assert (written.size_bytes, stat.S_IMODE(written.mode)) == (len(content), 0o644)
    assert await read_all(runner, "/workspace/deep/er/file") == content
    assert await read_all(runner, "/workspace/deep/er/file", 1000, 50) == content[1000:1050]
    assert await read_all(runner, "/workspace/deep/er/file", len(content) + 5) == b""
    found = await runner.stat("/workspace/deep/er/file")
    assert found.size_bytes == len(content)


async def test_a_file_is_written_from_a_stream(runner: RunnerClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(40):
            yield bytes([number]) * 50_000

    await runner.write_file("/workspace/streamed", pieces())
    assert await sh(runner, "stat -c %s streamed") == "2000000\n"
    await runner.write_file("/workspace/empty", b"")
    assert await read_all(runner, "/workspace/empty") == b""


async def test_a_write_keeps_the_mode_and_follows_a_link_inside(runner: RunnerClient) -> None:
    await sh(runner, "echo x > script; chmod 755 script; mkdir -p sub; ln -sfn ../script sub/link")
    await runner.write_file("/workspace/sub/link", b"new")
    assert await sh(runner, "stat -c %a script; cat script; readlink sub/link") == "755\nnew../script\n"


async def test_missing_parents_are_created_only_on_request(runner: RunnerClient) -> None:
    with pytest.raises(FileNotFound):
        await runner.write_file("/workspace/none/file", b"", make_parents=False)
    await sh(runner, "ln -sfn /etc outside")
    with pytest.raises(OutsideSandbox):
        await runner.write_file("/workspace/outside/new/file", b"")
    with pytest.raises(NotFound):  # clients that predate file errors catch this
        await read_all(runner, "/workspace/none/file")
    await sh(runner, "echo x > plain")
    for act in (
        lambda: read_all(runner, "/workspace/plain/file"),
        lambda: runner.write_file("/workspace/plain/file", b""),
        lambda: runner.glob("*", "/workspace/plain"),
    ):
        with pytest.raises(NotADirectory):
            await act()


async def test_the_memo_directory_is_read_only(runner: RunnerClient) -> None:
    assert await read_all(runner, "/workspace/memo/NOTES.md") == b"remember\n"
    for act in (
        lambda: runner.write_file("/workspace/memo/NOTES.md", b"x"),
        lambda: runner.write_file("/workspace/memo/new/x", b"x"),
        lambda: runner.edit_file("/workspace/memo/NOTES.md", "remember", "forget"),
    ):
        with pytest.raises(ReadOnly, match="read-only"):
            await act()


async def test_a_file_without_write_permission_is_refused_and_unchanged(runner: RunnerClient) -> None:
    await sh(runner, "rm -rf locked; echo kept > locked; chmod 444 locked; stat -c %i locked > inode")
    for act in (
        lambda: runner.write_file("/workspace/locked", b"x"),
        lambda: runner.edit_file("/workspace/locked", "kept", "lost"),
    ):
        with pytest.raises(PermissionDenied, match=r"^cannot (write|edit) /workspace/locked: permission denied; "):
            await act()
    assert await sh(runner, "cat locked; stat -c %i locked | cmp - inode; ls -A | grep -c sandboxd- || true") == (
        "kept\n0\n"
    )


async def test_a_file_without_read_permission_is_refused(runner: RunnerClient) -> None:
    await sh(runner, "rm -rf hidden closed; echo x > hidden; chmod 200 hidden; mkdir closed; echo x > closed/file")
    await sh(runner, "chmod 600 closed")
    for path in ("/workspace/hidden", "/workspace/closed/file"):
        for verb in ("read", "text", "edit"):
            with pytest.raises(PermissionDenied):
                await VERBS[verb](runner, path)
    await sh(runner, "chmod 700 closed; rm -r hidden closed")


async def test_a_writable_file_in_a_read_only_directory_is_overwritten_in_place(runner: RunnerClient) -> None:
    await sh(runner, "rm -rf sealed; mkdir sealed; echo old > sealed/file; ln sealed/file twin; chmod 640 sealed/file")
    await sh(runner, "chmod 555 sealed; stat -c %i sealed/file > inode")
    for content in (b"a" * 3_000_000, b"short\n", b""):
        written = await runner.write_file("/workspace/sealed/file", content)
        assert (written.size_bytes, stat.S_IMODE(written.mode)) == (len(content), 0o640)
        assert await read_all(runner, "/workspace/twin") == content
    await runner.write_file("/workspace/sealed/file", b"one two\n")
    await runner.edit_file("/workspace/sealed/file", "two", "three")
    assert await sh(runner, "cat twin; stat -c %i sealed/file | cmp - inode; ls -A sealed /var/tmp") == (
        "one three\n/var/tmp:\n\nsealed:\nfile\n"
    )
    with pytest.raises(PermissionDenied):
        await runner.write_file("/workspace/sealed/new", b"x")
    await sh(runner, "chmod 755 sealed; rm -r sealed twin")


async def test_an_interrupted_write_in_place_changes_nothing(runner: RunnerClient) -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b"x" * 100_000
        await anyio.sleep_forever()

    await sh(runner, "rm -rf sealed; mkdir sealed; echo old > sealed/file; chmod 555 sealed")
    with anyio.move_on_after(0.5):
        await runner.write_file("/workspace/sealed/file", stuck())
    with pytest.raises(WorkspaceFull):
        await runner.write_file("/workspace/sealed/file", b"x" * 64_000_000)
    assert await sh(runner, "cat sealed/file; ls -A /var/tmp; chmod 755 sealed; rm -r sealed") == "old\n"


async def test_a_large_file_is_replaced_without_room_for_both_versions(runner: RunnerClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(24):
            yield b"c" * 1_000_000

    large = 24_000_000  # of 32 MiB
    await runner.write_file("/tmp/large", b"a" * large)
    await runner.write_file("/tmp/large", b"b" * large)
    assert await sh(runner, "head -c 1 /tmp/large; stat -c ' %s' /tmp/large; ls -A /tmp") == f"b {large}\nlarge\n"
    await runner.write_file("/tmp/large", pieces(), size_bytes=large)
    assert await sh(runner, "head -c 1 /tmp/large; tail -c 1 /tmp/large; stat -c ' %s' /tmp/large; rm /tmp/large") == (
        f"cc {large}\n"
    )


async def test_a_large_file_that_another_program_has_open_is_replaced_too(runner: RunnerClient) -> None:
    await runner.write_file("/tmp/large", b"a" * 24_000_000)
    held = await runner.start_process(Exec("exec 3< /tmp/large; echo open; sleep 600"))
    with anyio.fail_after(HANG_S):
        while not (await runner.read_process(held.id, 0, wait_s=5)).data:
            pass
    await runner.write_file("/tmp/large", b"b" * 24_000_000)
    assert await sh(runner, "head -c 1 /tmp/large; stat -c ' %s' /tmp/large") == "b 24000000\n"
    await runner.kill_process(held.id)
    await sh(runner, "rm /tmp/large")


@pytest.mark.parametrize("why", ["too large", "size unknown", "second name", "small"])
async def test_the_old_file_stays_if_removing_it_would_not_help_or_is_not_safe(runner: RunnerClient, why: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(24):
            yield b"b" * 1_000_000

    old, fill = (500_000, 40_000_000) if why == "small" else (20_000_000, 0)
    await runner.write_file("/tmp/old", b"a" * old)
    await sh(runner, f"head -c {fill} /dev/zero > /tmp/fill 2> /dev/null || true")
    if why == "second name":
        await sh(runner, "ln /tmp/old /tmp/twin")
    sizes = {"too large": 40_000_000, "small": 600_000}
    data = pieces() if why == "size unknown" else b"b" * sizes.get(why, 24_000_000)
    with pytest.raises(WorkspaceFull, match=r"no space left; remove files first$"):
        await runner.write_file("/tmp/old", data)
    assert await sh(
        runner, "tr -d a < /tmp/old | wc -c; stat -c %s /tmp/old; ls -A /tmp | grep -c sandboxd- || true"
    ) == (f"0\n{old}\n0\n")
    await sh(runner, "rm -f /tmp/old /tmp/twin /tmp/fill")


async def test_an_interrupted_replacement_never_leaves_half_a_file(
    runner: RunnerClient,
) -> None:
    async def stuck() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"b" * 1_000_000
        await anyio.sleep_forever()

    await runner.write_file("/tmp/large", b"a" * 24_000_000)
    with anyio.move_on_after(HANG_S) as waiting:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(runner.write_file, "/tmp/large", stuck(), size_bytes=24_000_000))
            while await sh(runner, "cat /tmp/large > /dev/null 2>&1 && echo there || true"):
                pass
            group.cancel_scope.cancel()
    assert not waiting.cancelled_caught
    with pytest.raises(FileNotFound):
        await runner.stat("/tmp/large")
    for _ in range(100):
        if not (left := await sh(runner, "ls -A /tmp")):
            break
    assert left == ""


async def test_a_full_disk_is_reported_and_leaves_nothing_behind(runner: RunnerClient) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1_000_000

    for data in (b"x" * 64_000_000, endless()):
        with pytest.raises(WorkspaceFull):
            await runner.write_file("/tmp/large", data)
    assert await sh(runner, "ls -A /tmp") == ""


async def test_a_cancelled_write_leaves_nothing_behind(runner: RunnerClient) -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b"x" * 100_000
        await anyio.sleep_forever()

    with anyio.move_on_after(0.5):
        await runner.write_file("/workspace/half", stuck())
    assert await sh(runner, "sleep 0.3; ls -A | grep -E 'half|sandboxd-' || true") == ""


async def test_leaving_a_read_early_stops_it(runner: RunnerClient) -> None:
    await sh(runner, "head -c 5000000 /dev/zero > long")
    for _ in range(30):
        async with runner.read_file("/workspace/long") as reader:
            assert reader.stat.size_bytes == 5_000_000
            async for _piece in reader:
                break
    assert int(await sh(runner, "ls /proc/1/fd 2>/dev/null | wc -l")) == 0
    assert await read_all(runner, "/workspace/long") == bytes(5_000_000)


async def test_text_is_read_by_lines_within_bounds(runner: RunnerClient) -> None:
    await runner.write_file("/workspace/text", "\n".join(f"line {n}" for n in range(1, 3001)).encode() + b"\n")
    found = await runner.read_text("/workspace/text", 10, 2)
    assert (found.lines, found.first_line, found.total_lines, found.truncated) == (
        ("line 10", "line 11"),
        10,
        3000,
        True,
    )
    assert not (await runner.read_text("/workspace/text", 1, 3000)).truncated
    assert (await runner.read_text("/workspace/text", 5000)).lines == ()
    await runner.write_file("/workspace/text", b"x" * 5000 + b"\n\xff\xfe ok\r\n\n")
    found = await runner.read_text("/workspace/text")
    assert found.lines == ("x" * 2000, "\ufffd\ufffd ok\r", "")
    assert found.truncated
    await runner.write_file("/workspace/text", b"")
    assert (await runner.read_text("/workspace/text")).total_lines == 0


async def test_an_edit_is_atomic_and_a_refusal_says_why(runner: RunnerClient) -> None:
    await runner.write_file("/workspace/code", b"a b a\n")
    for old, new, reason in (("", "x", "empty"), ("a", "a", "equals"), ("z", "x", "not in"), ("a", "x", "2 matches")):
        with pytest.raises(InvalidRequest, match=reason):
            await runner.edit_file("/workspace/code", old, new)
    edited = await runner.edit_file("/workspace/code", "a", "xyz", replace_all=True)
    assert (edited.replacements, edited.size_bytes) == (2, 10)
    assert await read_all(runner, "/workspace/code") == b"xyz b xyz\n"
    large = "y" * 500_000
    assert (await runner.edit_file("/workspace/code", " b ", large)).size_bytes == 500_007


async def test_concurrent_edits_are_all_applied(runner: RunnerClient) -> None:
    await runner.write_file("/workspace/list", b"".join(b"<%d>" % n for n in range(30)))
    async with anyio.create_task_group() as group:
        for number in range(30):
            group.start_soon(runner.edit_file, "/workspace/list", f"<{number}>", f"[{number}]")
    assert await read_all(runner, "/workspace/list") == b"".join(b"[%d]" % n for n in range(30))


async def test_glob_finds_newest_first_and_follows_no_link(runner: RunnerClient) -> None:
    await sh(
        runner,
        "rm -rf g; mkdir -p g/a/b g/.hid; cd g; touch -d 2001-01-01 old.py; touch -d 2002-01-01 a/mid.py; "
        "touch -d 2003-01-01 a/b/new.py a/b/x.txt .hid/h.py; ln -s /usr/lib lib; ln -s . loop",
    )
    found = await runner.glob("**/*.py", "/workspace/g")
    assert found.paths == (
        "/workspace/g/.hid/h.py",
        "/workspace/g/a/b/new.py",
        "/workspace/g/a/mid.py",
        "/workspace/g/old.py",
    )
    assert (await runner.glob("a/*/[!x]*.{py,txt}", "/workspace/g")).paths == ("/workspace/g/a/b/new.py",)
    assert (await runner.glob("/workspace/g/a/*.p?")).paths == ("/workspace/g/a/mid.py",)
    limited = await runner.glob("**/*.py", "/workspace/g", limit=1)
    assert (len(limited.paths), limited.truncated) == (1, True)
    assert (await runner.glob("*" * 500 + "z", "/workspace/g")).paths == ()
    for bad in ("../*", "{a,b", "{a,b}" * 12):
        with pytest.raises(InvalidRequest):
            await runner.glob(bad, "/workspace/g")


async def test_grep_finds_with_ripgrep_semantics(runner: RunnerClient) -> None:
    await sh(
        runner,
        "rm -rf s; mkdir -p s/sub; cd s; printf 'one\\nTwo\\n' > a.txt; printf 'two\\n' > sub/b.py; "
        "printf 'two\\0' > bin; mkfifo pipe; ln -s /etc/passwd link; echo two > .hidden; echo hidden > .gitignore",
    )
    base = "/workspace/s"
    assert (await runner.grep(Grep("two", base))).text == f"{base}/.hidden\n{base}/sub/b.py\n"
    assert (await runner.grep(Grep("two", base, glob="*.txt", case_insensitive=True, output_mode="content"))).text == (
        f"{base}/a.txt:2:Two\n"
    )
    assert (await runner.grep(Grep("two", base, glob="*.py", output_mode="count"))).text == f"{base}/sub/b.py:1\n"
    assert (await runner.grep(Grep("one.Two", base, multiline=True))).text == f"{base}/a.txt\n"
    nothing = await runner.grep(Grep("absent", base))
    assert (nothing.text, nothing.matched) == ("", False)
    assert (await runner.grep(Grep("--version", base))).matched is False
    with pytest.raises(InvalidRequest, match=r"^cannot search: .*regex"):
        await runner.grep(Grep("(", base))


async def test_usage_counts_the_workspace_without_the_memo(runner: RunnerClient) -> None:
    before = await runner.usage()
    await sh(runner, "rm -rf u; mkdir u; head -c 1000000 /dev/urandom > u/one; ln u/one u/two")
    after = await runner.usage()
    assert after.inodes_used - before.inodes_used == 2
    assert 1_000_000 <= after.bytes_used - before.bytes_used < 1_100_000


async def test_two_hundred_concurrent_file_calls_all_answer(runner: RunnerClient) -> None:
    outcomes: list[bool] = []

    async def one(number: int) -> None:
        path = f"/workspace/many/{number % 10}"
        try:
            await runner.write_file(path, b"x" * 100_000)
            outcomes.append(await read_all(runner, path) == b"x" * 100_000)
        except SandboxdError:
            outcomes.append(False)

    async with anyio.create_task_group() as group:
        for number in range(200):
            group.start_soon(one, number)
    assert outcomes == [True] * 200


@pytest.mark.parametrize("mode", ["content", "files_with_matches", "count"])
@pytest.mark.parametrize("flags", ["", "i", "m"])
async def test_the_search_for_images_without_ripgrep_returns_the_same(
    runner: RunnerClient, mode: Literal["content", "files_with_matches", "count"], flags: str
) -> None:
    await sh(
        runner,
        "rm -rf s; mkdir -p s/sub; cd s; printf 'one\\nTwo\\ntwo two\\n' > a.txt; printf 'two\\n' > sub/b.py; "
        "printf 'two\\0' > bin; mkfifo pipe; ln -s /etc/passwd link; echo two > .hidden",
    )
    pattern = "one.Two" if "m" in flags else "two"
    call = Grep(pattern, "/workspace/s", None, mode, case_insensitive="i" in flags, multiline="m" in flags)
    program = ("python3", "-I", "-S", "-B", f"{RUNNER_TARGET}/search.py", mode, f"-{flags}", "", pattern, call.path)
    with anyio.fail_after(HANG_S):
        ours = await runner.exec(Exec(program))
    assert ours.exit_code == 0
    assert ours.stdout.decode() == (await runner.grep(call)).text
