"""Suggestions for a path that does not exist: a file of that name elsewhere, or a similar name beside it."""

from __future__ import annotations

import difflib
import posixpath

from sandboxd.errors import FileError, FileNotFound, InvalidRequest, OutsideSandbox, ToolTimeout
from sandboxd.models.paths import is_under
from sandboxd.runner.inside.container_paths import MEMO, WORKSPACE
from sandboxd.tools.context import ToolRunner

_MOST = 3
_MOST_BESIDE = 1000


async def with_suggestions(runner: ToolRunner, error: FileNotFound, path: str) -> FileNotFound:
    """Return the error, with the paths that may be meant if there are any."""
    try:
        found = await _similar_paths(runner, path)
    except (FileError, InvalidRequest, OutsideSandbox, ToolTimeout):
        found = []
    return FileNotFound(f"{error}; there is {' and '.join(found)}") if found else error


async def _similar_paths(runner: ToolRunner, path: str) -> list[str]:
    directory, name = posixpath.split(path)
    if not name or is_under(path, MEMO) or any(character in name for character in "*?[]{}\\"):
        return []
    elsewhere = await runner.glob(f"**/{name}", WORKSPACE, _MOST)
    if elsewhere.paths:
        return list(elsewhere.paths)
    beside = await runner.glob("*", directory, _MOST_BESIDE)
    names = {posixpath.basename(one): one for one in beside.paths}
    return [names[one] for one in difflib.get_close_matches(name[:255], names, _MOST, 0.75)]
