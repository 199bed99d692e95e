"""Streams of any size as files, in memory while they are small and else on disk; and tars with parts left out."""

from __future__ import annotations

import asyncio
import io
import tarfile
import tempfile
from collections.abc import AsyncIterator
from pathlib import PurePosixPath
from typing import IO, Any, cast

_IN_MEMORY_BYTES = 4_194_304


async def spooled(pieces: AsyncIterator[bytes]) -> io.IOBase:
    """Return a stream as a file, in memory or, if it is large, on disk."""
    spool = cast(Any, tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES))  # noqa: SIM115  # the caller closes it
    try:
        async for piece in pieces:
            await asyncio.to_thread(spool.write, piece)
    except BaseException:
        spool.close()
        raise
    spool.seek(0)
    return cast(io.IOBase, spool)


def without_entries(archive: io.IOBase, skipped: set[str]) -> io.IOBase:
    """Return a tar without the entries at these paths and below them."""
    spool = cast(Any, tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES))  # noqa: SIM115
    source = cast(IO[bytes], archive)
    with tarfile.open(fileobj=source, mode="r|") as before, tarfile.open(fileobj=spool, mode="w|") as after:
        for member in before:
            name = PurePosixPath(member.name)
            if not any(path.as_posix() in skipped for path in (name, *name.parents)):
                after.addfile(member, before.extractfile(member) if member.isreg() else None)
            before.members.clear()  # type: ignore[attr-defined]  # otherwise every header of a large archive is kept
    archive.close()
    spool.seek(0)
    return cast(io.IOBase, spool)
