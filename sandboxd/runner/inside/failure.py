"""Failures of calls, with the messages that the daemon passes on. Codes are names of the daemon's own error classes."""

from __future__ import annotations

import errno
import os


class Failure(Exception):
    """The call failed. The message starts with "cannot"."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No space left, or a file larger than the whole workspace's limit."""
_REASONS = {
    errno.ENOENT: ("FileNotFound", "no such file or directory"),
    errno.ENOTDIR: ("NotADirectory", "a part of this path is a file, not a directory"),
    errno.EISDIR: ("IsADirectory", "it is a directory; name a file in it"),
    errno.EACCES: ("PermissionDenied", "permission denied; change its mode or that of its directory first"),
    errno.EPERM: ("PermissionDenied", "operation not permitted"),
    errno.EROFS: ("ReadOnly", "it is read-only; write under /workspace, /var/tmp or /tmp instead"),
    errno.EEXIST: ("FileExists", "it exists already; remove it first or choose another name"),
    errno.ENOTEMPTY: ("DirectoryNotEmpty", "the directory is not empty; remove what is in it first"),
    **dict.fromkeys(FULL, ("WorkspaceFull", "no space left; remove files first")),
}


def explain(error: OSError, action: str, path: str) -> Failure:
    """Return a call's failure for an error that the kernel reported about its path."""
    code, reason = _REASONS.get(error.errno or 0, ("InvalidRequest", reason_of(error)))
    return Failure(code, f"cannot {action} {path}: {reason}")


def reason_of(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "it leads through a link of /proc or through too many links"
    return os.strerror(error.errno).lower() if error.errno else "unknown reason"
