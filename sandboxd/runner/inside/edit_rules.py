"""The rules of the Edit tool, for files in the workspace and for memory: what it refuses, and the messages."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    Content = TypeVar("Content", str, bytes | bytearray | memoryview)


def why_no_edit(path: str, old: Content, new: Content) -> str | None:
    """Return why this edit cannot apply to any text; None if it can."""
    if not old:
        return f"cannot edit {path}: old_string is empty; give the text to replace"
    if old == new:
        return f"cannot edit {path}: new_string equals old_string; nothing would change"
    return None


def why_no_match(path: str, found: int, replace_all: bool) -> str | None:
    """Return why an edit with this many matches does not apply; None if it does."""
    if found == 0:
        return f"cannot edit {path}: old_string is not in the file; Read it and copy the text exactly"
    if found > 1 and not replace_all:
        return (
            f"cannot edit {path}: found {found} matches; make old_string longer so that it matches once, "
            "or set replace_all"
        )
    return None
