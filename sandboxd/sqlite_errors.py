"""What an error of a SQLite file means for the daemon: a full disk, a lock, a device that refuses, or damage."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from sandboxd.errors import HostBusy, HostCorrupt, HostFull, HostIO, SandboxdError

_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
_REFUSED = (
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_NOMEM,
)


def explain(
    error: sqlite3.Error | OSError,
    verb: str,
    path: Path,
    *,
    advice: str,
    corrupt: Callable[[str], SandboxdError] = HostCorrupt,
) -> SandboxdError:
    """Return the error that says why the daemon cannot `verb`; `advice` says what to do about a damaged file.

    An error that is not the host's fault means that the file is not what the daemon wrote.
    """
    kind = _kind_of(error)
    if kind == sqlite3.SQLITE_FULL or (kind in _REFUSED and _is_full(path)):
        return HostFull(f"cannot {verb}: the disk of {path.name} is full; free some space")
    if kind in _LOCKED:
        return HostBusy(f"cannot {verb}: another process holds {path.name}; try again")
    if kind in _REFUSED:
        return HostIO(f"cannot {verb}: {path.name} cannot be read or written ({error}); look at its disk and its mode")
    return corrupt(f"cannot {verb}: {path.name} is damaged ({error}); {advice}")


def _kind_of(error: sqlite3.Error | OSError) -> int | None:
    if isinstance(error, OSError):
        return sqlite3.SQLITE_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else sqlite3.SQLITE_IOERR
    code = getattr(error, "sqlite_errorcode", None)  # extended: the low byte is the kind
    return None if code is None else code & 0xFF


def _is_full(path: Path) -> bool:
    """Say whether the filesystem has no room: SQLite calls it an I/O error when it cannot grow its own small files."""
    try:
        status = os.statvfs(path.parent)
    except OSError:
        return False
    return status.f_bavail == 0 or (status.f_files > 0 and status.f_favail == 0)
