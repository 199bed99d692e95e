"""Searches of file contents: with ripgrep if it can be confined, otherwise with this file as a program.

A search always runs in a child with a deadline: a Python regular expression can run for ever and could not be stopped
in the runner. Neither way leaves the agent's directories, even if links are swapped concurrently: the kernel confines
ripgrep, and the program here opens name by name and follows no link.
"""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

MAX_COLUMNS = 2_000
MAX_LINE_BYTES = 1_048_576
MAX_MULTILINE_BYTES = 8_388_608
MAX_DEPTH = 256
RIPGREP_PLACES = ("/usr/bin/rg", "/usr/local/bin/rg", "/bin/rg")
_MODES = {"content": ["--line-number"], "files_with_matches": ["--files-with-matches"], "count": ["--count"]}


def find_ripgrep() -> str:
    return next((path for path in RIPGREP_PLACES if os.access(path, os.X_OK)), "")


def make_command(ripgrep: str, head: dict[str, Any], real: str) -> list[str]:
    """Return the child's command line. No input of the agent can become an option."""
    if not ripgrep:
        flags = ("i" if head["insensitive"] else "") + ("m" if head["multiline"] else "")
        own = os.path.abspath(__file__)
        options = ["-I", "-S", "-B", own, head["mode"], "-" + flags, head["glob"] or ""]
        return [sys.executable, *options, head["pattern"], real]
    command = [ripgrep, "--no-config", "--hidden", "--no-ignore", "--no-messages", "--no-mmap", "--color=never"]
    command += ["--no-heading", "--with-filename", "--sort=path", f"--max-columns={MAX_COLUMNS}"]
    command += ["--max-columns-preview", *_MODES[head["mode"]]]
    if head["insensitive"]:
        command.append("--ignore-case")
    if head["multiline"]:
        command += ["--multiline", "--multiline-dotall"]
    if head["glob"]:
        command.append("--glob=" + head["glob"])
    return [*command, "-e", head["pattern"], "--", real]


def main(mode: str, flags: str, glob: str, pattern: str, start: str) -> int:
    """Search like ripgrep, with the same output and exit codes, for images without ripgrep."""
    import re
    from fnmatch import fnmatch

    options = (re.IGNORECASE if "i" in flags else 0) | (re.DOTALL | re.MULTILINE if "m" in flags else 0)
    try:
        wanted = re.compile(pattern.encode(), options)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        sys.stderr.write(f"regex parse error: {error}\n")
        return 2
    write = sys.stdout.buffer.write
    matched = False
    for path, file in _regular_files(start):
        name = os.path.basename(path)
        if glob and not (fnmatch(name, glob) or fnmatch(os.path.relpath(path, start), glob)):
            continue
        shown = path.encode("utf-8", "surrogateescape")
        matches = 0
        last = -1
        for match, number, line in _matching_lines(file, wanted, "m" in flags):
            matches += match != last
            last = match
            if mode == "content":
                write(b"%s:%d:%s\n" % (shown, number, line[:MAX_COLUMNS]))
            elif mode == "files_with_matches":
                write(shown + b"\n")
                break
        if matches and mode == "count":
            write(b"%s:%d\n" % (shown, matches))
        matched = matched or matches > 0
    return 0 if matched else 1


def _regular_files(start: str) -> Iterator[tuple[str, BinaryIO]]:
    """Yield every file at or below a path, opened name by name without following links."""
    directory = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    *parents, last = [part for part in start.split("/") if part]
    try:
        for part in parents:
            deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            os.close(directory)
            directory = deeper
        yield from _files_at(directory, last, start, MAX_DEPTH)
    except OSError:
        return
    finally:
        os.close(directory)


def _files_at(parent: int, name: str, path: str, depth: int) -> Iterator[tuple[str, BinaryIO]]:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        with os.fdopen(fd, "rb") as file:
            yield path, file
        return
    try:
        if stat.S_ISDIR(mode) and depth:
            for entry in sorted(os.listdir(fd)):
                yield from _files_at(fd, entry, path + "/" + entry, depth - 1)
    except OSError:
        return
    finally:
        os.close(fd)


def _matching_lines(file: BinaryIO, wanted: Any, multiline: bool) -> Iterator[tuple[int, int, bytes]]:
    """Yield every line that a match touches, with the number of the match and of the line."""
    try:
        head = file.read(8192)
        if b"\0" in head:
            return
        file.seek(0)
        if multiline:
            yield from _matches_across_lines(file.read(MAX_MULTILINE_BYTES), wanted)
            return
        number, found, is_start = 0, False, True
        while line := file.readline(MAX_LINE_BYTES):  # a longer line is read in pieces
            number += is_start
            found = found and not is_start
            is_start = line.endswith(b"\n")
            if not found and wanted.search(line.rstrip(b"\n") if is_start else line):
                found = True
                yield number, number, line.rstrip(b"\n")
    except OSError:
        return


def _matches_across_lines(content: bytes, wanted: Any) -> Iterator[tuple[int, int, bytes]]:
    number = end = 0  # line ends before `end`
    shown = 0
    for position, match in enumerate(wanted.finditer(content)):
        number += content.count(b"\n", end, match.start())
        end = match.start()
        start = content.rfind(b"\n", 0, end) + 1
        for offset in range(match.group().count(b"\n") + 1):
            stop = content.find(b"\n", start)
            stop = len(content) if stop < 0 else stop
            if number + offset + 1 > shown:
                shown = number + offset + 1
                yield position, shown, content[start:stop]
            start = stop + 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:6]))
