"""A consistent copy of a workspace's image: frozen while it is copied, and thawed in every case.

Only the copy itself happens while the workspace is frozen. The daemon writes nothing to it meanwhile, and a caller that
is cancelled ends the copy after one piece.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import anyio
from anyio import from_thread, to_thread

from sandboxd import failpoints
from sandboxd.workspace import images, loop
from sandboxd.workspace.freezer import Freeze
from sandboxd.workspace.images import CopyProgress

T = TypeVar("T")


async def copy_image(
    image: Path, files: Path, target: Path, *, freeze_s: float, progress: CopyProgress, to_keep: bool
) -> None:
    """Copy `image`, which may be mounted on `files`, to the new file `target`; leave no file if it fails.

    A copy `to_keep` is repaired and on disk. Repairing frees what was deleted but still open; without it a copy is
    consistent too, and is repaired when it is mounted for the second time.
    """
    # Threads of its own: while a workspace is frozen, its copy must not wait for the threads of other work.
    threads = anyio.CapacityLimiter(1)
    try:
        async with _frozen(files, freeze_s, threads) as limit_s:
            await failpoints.reach("snapshot.frozen")
            await _in_thread(threads, images.copy_sparse, image, target, progress, _check(target, limit_s))
            await failpoints.reach("snapshot.copied")
        await failpoints.reach("snapshot.thawed")
        if to_keep:
            await _in_thread(threads, _finish, target)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await _in_thread(threads, lambda: target.unlink(missing_ok=True))
        raise


@asynccontextmanager
async def _frozen(files: Path, freeze_s: float, threads: anyio.CapacityLimiter) -> AsyncGenerator[float]:
    """Freeze the filesystem that is mounted on `files`, if there is one; yield how long it may take, in seconds."""
    if not loop.is_mounted(files):
        yield float("inf")
        return
    freeze = Freeze(files, freeze_s)
    try:
        await _in_thread(threads, freeze.begin)
        yield freeze_s
    except BaseException:
        with anyio.CancelScope(shield=True), contextlib.suppress(OSError):  # the first error says more
            await _in_thread(threads, freeze.end)
        raise
    with anyio.CancelScope(shield=True):
        await _in_thread(threads, freeze.end)


def _finish(target: Path) -> None:
    """Make the copy clean, so that it can be mounted at once, and durable."""
    images.check(target)
    file = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _check(target: Path, limit_s: float) -> Callable[[], None]:
    """Return a function for the copying thread that raises if the copy was cancelled, is late or fills the disk."""
    deadline = time.monotonic() + limit_s

    def check() -> None:
        from_thread.check_cancelled()
        images.check_room(target.parent)
        if time.monotonic() > deadline:
            raise OSError(errno.ETIMEDOUT, f"it took longer than {limit_s:g} s")

    return check


async def _in_thread(threads: anyio.CapacityLimiter, function: Callable[..., T], *arguments: object) -> T:
    return await to_thread.run_sync(function, *arguments, limiter=threads)
