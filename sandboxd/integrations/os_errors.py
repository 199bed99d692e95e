"""The daemon's file errors as the OSError that Python code expects."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from sandboxd.errors import SandboxdError

_ERRNO_OF = {
    "file.not_found": errno.ENOENT,
    "file.is_directory": errno.EISDIR,
    "file.not_a_directory": errno.ENOTDIR,
    "file.permission_denied": errno.EACCES,
    "file.read_only": errno.EROFS,
    "file.exists": errno.EEXIST,
    "sandbox.workspace_full": errno.ENOSPC,
}


@contextmanager
def as_os_errors(path: str) -> Iterator[None]:
    """Raise FileNotFoundError, IsADirectoryError, PermissionError and the like for the daemon's file errors."""
    try:
        yield
    except SandboxdError as error:
        number = _ERRNO_OF.get(error.code)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), path) from error
