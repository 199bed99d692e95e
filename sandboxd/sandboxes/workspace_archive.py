"""Archives of workspaces that are plain directories: the runner reads and writes them, inside.

The daemon keeps an archive as an opaque file and never extracts it, because its contents come from a container.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import anyio
from anyio import to_thread

from sandboxd.errors import DependencyError, HostFull, WorkspaceFull
from sandboxd.permissions import PRIVATE_FILE
from sandboxd.runner.inside.container_paths import WORKSPACE
from sandboxd.workspace import CopyProgress, inode_limit

_BLOCK_BYTES = 1024 * 1024
_HEADER_BYTES = 2048  # of one file in an archive, with a long name
_MIB = 1024 * 1024


class ArchivingRunner(Protocol):
    def read_archive(
        self, path: str, *, hold_processes: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Stream a directory as a tar archive. With `hold_processes`, all other processes stand still meanwhile."""

    async def write_archive(self, path: str, data: AsyncIterable[bytes]) -> object:
        """Extract a tar archive below a directory."""


def largest_archive(disk_mb: int) -> int:
    """Return how large the archive of a workspace with this limit may be, in bytes."""
    return disk_mb * _MIB + inode_limit(disk_mb) * _HEADER_BYTES


async def save_archive(runner: ArchivingRunner, target: Path, disk_mb: int, progress: CopyProgress) -> None:
    """Write the archive of the workspace to a new file, or leave no file."""
    try:
        async with (
            await anyio.open_file(target, "xb", buffering=0, opener=_open_private) as file,
            runner.read_archive(WORKSPACE, hold_processes=True) as pieces,
        ):
            async for piece in pieces:
                await file.write(piece)
                progress.copied_bytes += len(piece)
                progress.total_bytes = max(progress.total_bytes, progress.copied_bytes)
                if progress.copied_bytes > largest_archive(disk_mb):
                    raise WorkspaceFull(
                        f"cannot copy this workspace: it is over its limit of {disk_mb} MB; remove files first"
                    )
            await to_thread.run_sync(os.fsync, file.wrapped.fileno())
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            await anyio.Path(target).unlink(missing_ok=True)
        if isinstance(error, OSError):
            kind = HostFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else DependencyError
            raise kind(f"cannot copy this workspace: {error.strerror}") from error
        raise


async def load_archive(runner: ArchivingRunner, source: Path) -> None:
    """Extract an archive into the workspace."""
    async with await anyio.open_file(source, "rb", buffering=0) as file:

        async def pieces() -> AsyncIterator[bytes]:
            while piece := await file.read(_BLOCK_BYTES):
                yield piece

        await runner.write_archive(WORKSPACE, pieces())


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE_FILE)
