"""Document files: where the visible file of a document lies below its owner's directory.

A name with several segments lies in nested directories, which are made for a file and removed after the last one. A
link is never followed. It does not depend on revisions.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress

from memo.document_names import MOST_SEGMENTS
from memo.stores.filesystem.directory import Directory, disk_errors
from memo.stores.filesystem.layout import document_name


def split(name: str) -> tuple[list[str], str]:
    *directories, file = name.split("/")
    return directories, file


def open_parent(owner: Directory, name: str) -> tuple[Directory, bool]:
    """Open the directory of a document's file. If it does not exist, open the nearest one above and return False."""
    here = Directory(os.dup(owner.fd), owner.path)
    for segment in split(name)[0]:
        with here:
            found = here.stat(segment)
            if found is None or stat.S_ISREG(found.st_mode):  # a document lies where the directory would
                return Directory(os.dup(here.fd), here.path), False
            below = here.child(segment)
            if below is None:  # removed a moment ago
                return Directory(os.dup(here.fd), here.path), False
        here = below
    return here, True


def make_parent(owner: Directory, name: str) -> Directory:
    return owner.make_path(*split(name)[0])


def remove_empty_parents(owner: Directory, name: str) -> None:
    """Remove the directories of a removed file, innermost first, until one has another use."""
    directories, _ = split(name)
    while directories:
        last = directories.pop()
        parent = owner.descend(*directories)
        if parent is None:
            continue
        with parent, disk_errors(f"remove {parent.where(last)}"):
            try:
                os.rmdir(last, dir_fd=parent.fd)
            except FileNotFoundError:
                continue
            except OSError:  # not empty
                return
            os.fsync(parent.fd)


def find_files(owner: Directory) -> list[tuple[str, os.stat_result]]:
    """Return every file below the owner that has the name of a document, by name. Not all of them are documents."""
    return sorted(_walk(owner, "", 1), key=lambda found: found[0])


def _walk(directory: Directory, prefix: str, depth: int) -> Iterator[tuple[str, os.stat_result]]:
    with disk_errors(f"list {directory.path}"), os.scandir(directory.fd) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for segment, is_directory in found:
        name = prefix + segment
        if document_name(name) is None and not (is_directory and document_name(f"{name}/x") is not None):
            continue  # hidden, reserved or not a legal name
        if not is_directory:
            with suppress(FileNotFoundError), disk_errors(f"inspect {directory.where(segment)}"):
                yield name, os.stat(segment, dir_fd=directory.fd, follow_symlinks=False)
        elif depth < MOST_SEGMENTS and (below := directory.child(segment)) is not None:
            with below:
                yield from _walk(below, f"{name}/", depth + 1)
