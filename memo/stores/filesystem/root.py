"""The root of a store: made durably, and marked with the version of its format, so that the past knows the future.

Knows nothing of what is below.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from memo.errors import Corrupt, Unsupported
from memo.stores.filesystem.disk import Directory
from memo.stores.filesystem.layout import STAGED
from memo.stores.filesystem.locks import locked

VERSION: Final = 1
_FORMAT: Final = "format"


def make_root(path: Path) -> None:
    missing = [p for p in (path, *path.parents) if not p.exists()]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for made in reversed(missing):
        with Directory.open(str(made.parent)) as parent:
            parent.sync()


def check_format(hidden: Directory) -> None:
    """Refuse a directory of a newer version; mark a new one."""
    with locked(hidden.fd, hidden.place, exclusive=True):
        content = hidden.read(_FORMAT)
        if content is None:
            hidden.stage(STAGED, json.dumps({"version": VERSION}).encode() + b"\n")
            hidden.move(STAGED, hidden, _FORMAT)
            return
    try:
        version = int(json.loads(content)["version"])
    except (ValueError, KeyError, TypeError):
        raise Corrupt(f"cannot open this store: {hidden.where(_FORMAT)} is damaged") from None
    if version > VERSION:
        raise Unsupported(
            f"cannot open this store: its format is version {version}, and this program knows up to {VERSION}"
        )
