"""Searching file contents: ripgrep when the image has it, else this file as a small program of its own.

A search always runs in a child with a deadline: a regular expression of Python can run for ever, and in the
runner it could not be stopped. This module builds the child's command line; it never searches in the runner.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAX_COLUMNS = 2_000
RIPGREP_PLACES = ("/usr/bin/rg", "/usr/local/bin/rg", "/bin/rg")
_MODES = {"content": ["--line-number"], "files_with_matches": ["--files-with-matches"], "count": ["--count"]}


def find_ripgrep() -> str:
    return next((path for path in RIPGREP_PLACES if os.access(path, os.X_OK)), "")


def make_command(ripgrep: str, head: dict[str, Any], real: str) -> list[str]:
    """Return the child's command line. Nothing the agent gives can become an option."""
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
    """The program for images without ripgrep: the same output, the same exit codes."""
    import re
    from fnmatch import fnmatch

    options = (re.IGNORECASE if "i" in flags else 0) | (re.DOTALL | re.MULTILINE if "m" in flags else 0)
    try:
        wanted = re.compile(pattern.encode(), options)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        sys.stderr.write(f"regex parse error: {error}\n")
        return 2
    matched = False
    for path in _regular_files(start):
        name = os.path.basename(path)
        if glob and not (fnmatch(name, glob) or fnmatch(os.path.relpath(path, start), glob)):
            continue
        lines = list(_matching_lines(path, wanted, "m" in flags))
        if not lines:
            continue
        matched = True
        shown = path.encode("utf-8", "surrogateescape")
        if mode == "files_with_matches":
            sys.stdout.buffer.write(shown + b"\n")
        elif mode == "count":
            sys.stdout.buffer.write(b"%s:%d\n" % (shown, len({match for match, _number, _line in lines})))
        else:
            for _match, number, line in lines:
                sys.stdout.buffer.write(b"%s:%d:%s\n" % (shown, number, line[:MAX_COLUMNS]))
    return 0 if matched else 1


def _regular_files(start: str) -> Iterator[str]:
    if os.path.isfile(start):
        yield start
        return
    for directory, names, found in os.walk(start):
        names.sort()
        for name in sorted(found):
            path = os.path.join(directory, name)
            if os.path.isfile(path) and not os.path.islink(path):
                yield path


def _matching_lines(path: str, wanted: Any, multiline: bool) -> Iterator[tuple[int, int, bytes]]:
    """Yield every line that a match touches, with the number of the match and of the line."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    with os.fdopen(fd, "rb") as file:
        content = file.read(67_108_864)
    if b"\0" in content[:8192]:
        return
    lines = content.split(b"\n")
    if multiline:
        seen = set()
        for position, match in enumerate(wanted.finditer(content)):
            first = content.count(b"\n", 0, match.start())
            for number in range(first, first + match.group().count(b"\n") + 1):
                if number not in seen:
                    seen.add(number)
                    yield position, number + 1, lines[number]
        return
    if lines and not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines):
        if wanted.search(line):
            yield number, number + 1, line


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:6]))
