"""Why a call was refused, as the daemon will say it. Codes are names of the daemon's own error classes."""

from __future__ import annotations

import errno
import os


class Failure(Exception):
    """A call that cannot be done. The message starts with "cannot"."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


_FULL = (errno.ENOSPC, errno.EDQUOT)
_MISSING = (errno.ENOENT, errno.ENOTDIR)


def explain(error: OSError, action: str, path: str) -> Failure:
    """Turn what the kernel said about a path into a failure of the call that named it."""
    if error.errno in _MISSING:
        return Failure("NotFound", f"cannot {action} {path}: no such file or directory")
    if error.errno in _FULL:
        return Failure("WorkspaceFull", f"cannot {action} {path}: the workspace is full")
    if error.errno == errno.EROFS:
        return Failure("InvalidRequest", f"cannot {action} {path}: read-only file system")
    return Failure("InvalidRequest", f"cannot {action} {path}: {reason_of(error)}")


def reason_of(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "it leads through a link of /proc or through too many links"
    return os.strerror(error.errno).lower() if error.errno else "unknown reason"
