"""Deletes a directory that a container has written, whatever its depth and permissions, following no link.

It holds two directories open by descriptor, and moves deep directories up instead of descending, so a tree of a million
levels cannot exhaust it and a tree that changes meanwhile cannot mislead it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def delete_tree(path: Path) -> None:
    """Delete this directory and everything in it. A missing directory is not an error."""
    parent = os.open(path.parent, _DIRECTORY)
    try:
        with contextlib.suppress(FileNotFoundError):
            top = _open_directory(parent, path.name)
            try:
                while children := _delete_files(top):
                    for child in children:
                        _flatten(top, child)
            finally:
                os.close(top)
            os.rmdir(path.name, dir_fd=parent)
    finally:
        os.close(parent)


def _flatten(top: int, child: str) -> None:
    """Remove one directory at the top: delete its files, and move its directories up next to it."""
    directory = _open_directory(top, child)
    try:
        for grandchild in _delete_files(directory):
            os.close(_open_directory(directory, grandchild))  # a directory can only be moved if it is writable itself
            # A name that the container cannot have planted: random, and new each time.
            os.rename(grandchild, f".moved-{secrets.token_hex(16)}", src_dir_fd=directory, dst_dir_fd=top)
    finally:
        os.close(directory)
    os.rmdir(child, dir_fd=top)


def _delete_files(directory: int) -> list[str]:
    """Unlink everything that is not a directory, and return the directories."""
    with os.scandir(directory) as entries:
        listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in listed:
        if not is_directory:
            os.unlink(name, dir_fd=directory)
    return [name for name, is_directory in listed if is_directory]


def _open_directory(parent: int, name: str) -> int:
    """Open a directory for reading and make it writable, even if its owner removed its own permissions."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        link = f"/proc/self/fd/{handle}"
        if os.fstat(handle).st_mode & 0o700 != 0o700:
            os.chmod(link, 0o700)
        return os.open(link, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)
