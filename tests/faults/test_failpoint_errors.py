"""A host error at any failpoint is answered with a code: no internal error, no hang, and the daemon still starts."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest

from sandboxd import failpoints
from sandboxd.client import AsyncClient
from sandboxd.client.errors import DaemonUnreachable
from sandboxd.daemon.loop_watchdog import LoopWatchdog
from sandboxd.daemon.process import serve
from sandboxd.errors import NotFound, SandboxdError
from sandboxd.settings import Settings

pytestmark = [pytest.mark.engine, pytest.mark.anyio]

_PATIENCE_S = 60
_ERRORS = cycle(("EIO", "ENOSPC"))

Operation = Callable[[], Awaitable[object]]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


@pytest.fixture
def home() -> Iterator[Path]:
    with TemporaryDirectory(
        prefix="sandboxd-test-", ignore_cleanup_errors=True
    ) as name:  # short, because a socket's path is limited
        Path(name).chmod(0o711)
        yield Path(name)


@asynccontextmanager
async def running(home: Path, *, pool: int = 0) -> AsyncIterator[AsyncClient]:
    """A daemon in this process, so that failpoints can be armed while it runs."""
    settings = Settings(
        data=home / "data",
        socket=home / "d.sock",
        engine="bubblewrap",
        pool=pool,
        outbox=True,
        nice=0,
        limits={"disk_mb": 8},
    )
    async with AsyncClient(settings.socket) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(serve, settings, LoopWatchdog(0, end=print))
        with anyio.fail_after(_PATIENCE_S):
            while True:
                try:
                    await client.health()
                    break
                except DaemonUnreachable:
                    await anyio.sleep(0.05)
        yield client
        signal.raise_signal(signal.SIGTERM)  # in use as long as the daemon runs


def points_of(*families: str) -> list[str]:
    return sorted(point for point in failpoints.POINTS if point.split(".")[0] in families)


async def check(point: str, operation: Operation) -> None:
    """Check that with an error at this point the operation succeeds, or fails with a code that is not internal."""
    failpoints.arm(f"{point}=error({next(_ERRORS)})")
    try:
        with anyio.fail_after(_PATIENCE_S):
            await operation()
    except SandboxdError as error:
        assert not error.code.startswith("internal."), f"{point}: {error}"
        assert str(error).startswith("cannot"), f"{point}: {error}"
    finally:
        failpoints.arm("")


async def manage(operation: Operation) -> None:
    """Run it with no error armed, and retry, because an engine on a busy host may need another attempt."""
    with anyio.fail_after(_PATIENCE_S):
        while True:
            try:
                await operation()
                return
            except SandboxdError as error:
                if not error.retryable:
                    raise
                await anyio.sleep(0.1)


async def test_an_error_at_create_or_destroy_has_a_code(home: Path) -> None:
    async with running(home) as client:
        for point in points_of("create"):
            await check(point, lambda: client.ensure_sandbox("s1", user="ada"))
            await manage(lambda: client.ensure_sandbox("s1", user="ada"))
            await manage(lambda: client.destroy_sandbox("s1"))
        for point in points_of("destroy"):
            await manage(lambda: client.ensure_sandbox("s1", user="ada"))
            await check(point, lambda: client.destroy_sandbox("s1"))
            with suppress(NotFound):  # it failed after the record was removed
                await manage(lambda: client.destroy_sandbox("s1"))
        assert await client.list_sandboxes() == []


async def test_an_error_at_a_pause_or_a_hibernation_has_a_code_and_loses_nothing(home: Path) -> None:
    async with running(home) as client:
        await manage(lambda: client.ensure_sandbox("s1", user="ada"))
        await client.exec("s1", "echo kept > /workspace/file")
        for point in points_of("pause", "resume"):
            await check(point, lambda: client.pause_sandbox("s1"))
            await check(point, lambda: client.resume_sandbox("s1"))
            await manage(lambda: client.resume_sandbox("s1"))
        for point in points_of("hibernate"):
            await check(point, lambda: client.hibernate_sandbox("s1"))
            await manage(lambda: client.collect_garbage())
            assert (await client.exec("s1", "cat /workspace/file")).stdout == "kept\n"
        await manage(lambda: client.destroy_sandbox("s1"))


async def test_an_error_at_a_snapshot_or_a_fork_has_a_code_and_leaves_nothing(home: Path) -> None:
    async with running(home) as client:
        await manage(lambda: client.ensure_sandbox("s1", user="ada"))
        await client.exec("s1", "echo kept > /workspace/file")
        for point in points_of("snapshot"):
            await check(point, lambda: client.take_snapshot("s1"))
            for snapshot in await client.list_snapshots("s1"):
                await check(point, partial(client.remove_snapshot, "s1", snapshot.id))
            for snapshot in await client.list_snapshots("s1"):
                await manage(partial(client.remove_snapshot, "s1", snapshot.id))
            assert list((home / "data" / "snapshots").iterdir()) == []
        for point in points_of("fork", "snapshot"):
            await check(point, lambda: client.fork("s1", ["s2", "s3"]))
            left = [view.session for view in await client.list_sandboxes()]
            assert left in (["s1"], ["s1", "s2", "s3"]), point
            for session in left[1:]:
                await manage(partial(client.destroy_sandbox, session))
            assert len(list((home / "data" / "workspaces").glob("[!.]*"))) == 1, point
            assert list((home / "data" / "workspaces").glob(".new-*")) == [], point
        assert (await client.exec("s1", "cat /workspace/file")).stdout == "kept\n"
        await manage(lambda: client.fork("s1", ["s2", "s3"]))
        for name in ("s1", "s2", "s3"):
            await manage(partial(client.destroy_sandbox, name))


async def test_an_error_at_the_claim_of_a_warm_sandbox_has_a_code(home: Path) -> None:
    async with running(home, pool=1) as client:
        for point in points_of("claim"):
            await check(point, lambda: client.ensure_sandbox("s1", user="ada"))
            await manage(lambda: client.ensure_sandbox("s1", user="ada"))
            await manage(lambda: client.destroy_sandbox("s1"))
    async with running(home):  # without a pool, warm sandboxes are retired
        with anyio.fail_after(_PATIENCE_S):
            while any((home / "data" / "run").iterdir()):
                await anyio.sleep(0.05)


async def test_an_error_at_a_write_or_refresh_of_memory_has_a_code(home: Path) -> None:
    async with running(home) as client:
        await manage(lambda: client.ensure_sandbox("s1", user="ada"))
        operations: list[Operation] = [
            lambda: client.write_memo("s1", "NOTES.md", "written\n"),
            lambda: client.append_memo("s1", "NOTES.md", "appended\n"),
            lambda: client.write_artifact("s1", "call-1", "a result\n"),
            lambda: client.refresh_memo_mirror("s1", "/workspace/memo/session/NOTES.md"),
        ]
        for point in points_of("writeback", "refresh", "outbox"):
            for operation in operations:
                await check(point, operation)
        for operation in operations:
            await operation()
        assert (await client.read_memo("s1", "NOTES.md")).text == "written\nappended\n"
        await manage(lambda: client.destroy_sandbox("s1"))


async def test_an_error_at_start_does_not_affect_other_sandboxes(home: Path) -> None:
    asked = ("claim", "create", "destroy", "fork", "hibernate", "pause", "resume", "snapshot")
    known = (*asked, "outbox", "refresh", "writeback")
    at_start = [point for point in sorted(failpoints.POINTS) if point.split(".")[0] not in known]
    assert {"reconcile.planned", "reconcile.acted"} <= set(at_start)
    async with running(home) as client:
        await manage(lambda: client.ensure_sandbox("s1", user="ada"))
        await client.exec("s1", "echo kept > /workspace/file")
    for point in at_start:
        failpoints.arm(f"{point}=error({next(_ERRORS)})")
        async with running(home) as client:
            failpoints.arm("")
            await manage(lambda: client.ensure_sandbox("s1", user="ada"))
            assert (await client.exec("s1", "cat /workspace/file")).stdout == "kept\n"
    async with running(home) as client:
        await manage(lambda: client.destroy_sandbox("s1"))
