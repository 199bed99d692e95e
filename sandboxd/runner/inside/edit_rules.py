"""The rules of the Edit tool, for files in the workspace and for memory: what it refuses, and the messages."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeVar

    Content = TypeVar("Content", str, bytes | bytearray | memoryview)

NO_MATCH = "old_string is not in the file"
MOST_LINES = 10
"""How many matches are named by their line."""


def why_no_edit(path: str, old: Content, new: Content) -> str | None:
    """Return why this edit cannot apply to any text; None if it can."""
    if old == new:
        return f"cannot edit {path}: new_string equals old_string; nothing would change"
    if not old:
        return f"cannot edit {path}: old_string is empty; give the text to replace"
    return None


def why_no_match(path: str, found: int, replace_all: bool, lines: Sequence[int] = ()) -> str | None:
    """Return why an edit with this many matches, which begin on these lines, does not apply; None if it does."""
    if found == 0:
        return f"cannot edit {path}: {NO_MATCH}; Read it and copy the text exactly"
    if found > 1 and not replace_all:
        return (
            f"cannot edit {path}: found {found} matches{_on_lines(found, lines)}; make old_string longer so that it "
            "matches once, or set replace_all"
        )
    return None


def lines_of_matches(text: str, old: str) -> list[int]:
    """Return the lines on which the first matches begin, counted from 1."""
    lines: list[int] = []
    line, position = 1, 0
    while len(lines) < MOST_LINES and (found := text.find(old, position)) >= 0:
        line += text.count("\n", position, found)
        lines.append(line)
        line += old.count("\n")
        position = found + len(old)
    return lines


def _on_lines(found: int, lines: Sequence[int]) -> str:
    if not lines:
        return ""
    more = ", ..." if found > len(lines) else ""
    return f", on lines {', '.join(map(str, lines))}{more}"
