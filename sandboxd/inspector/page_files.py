"""PageFiles: the files of the inspector's page, read once from the package.

A request names a file of this list, so no path from outside ever reaches the file system.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

INDEX = "index.html"
DIRECTORY = Path(__file__).parent / "static"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
}
"""Files of other types are not served."""


@dataclass(frozen=True, slots=True)
class PageFile:
    content: bytes
    media_type: str
    etag: str


class PageFiles:
    """The files by their path below the directory, with `/` between its parts."""

    def __init__(self, files: dict[str, PageFile]) -> None:
        self._files = files

    @classmethod
    def read(cls, directory: Path = DIRECTORY) -> Self:
        paths = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.suffix in _MEDIA_TYPES]
        return cls({path.relative_to(directory).as_posix(): _read(path) for path in paths})

    def find(self, name: str) -> PageFile | None:
        return self._files.get(name)

    @property
    def names(self) -> list[str]:
        return list(self._files)


def _read(path: Path) -> PageFile:
    content = path.read_bytes()
    return PageFile(content, _MEDIA_TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
