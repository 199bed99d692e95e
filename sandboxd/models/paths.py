"""Paths inside a container, and text without NUL characters, as requests and tools accept them.

They are checked here as text only. The runner, inside the container, checks where a path really leads.
"""

from __future__ import annotations

import posixpath
from typing import Annotated

from pydantic import AfterValidator

from sandboxd.errors import OutsideSandbox
from sandboxd.runner.inside.container_paths import NAMES_OF_ROOTS, ROOTS

MAX_PATH_BYTES = 4095


def is_under(path: str, root: str) -> bool:
    return path == root or path.startswith(root + "/")


def normalise_path(text: str) -> str:
    """Normalise an absolute path. The runner checks where it leads."""
    parse_text(text)
    if not text.startswith("/"):
        raise ValueError("must be an absolute path, for example /workspace/notes.txt")
    if len(text.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES:
        raise ValueError(f"must be at most {MAX_PATH_BYTES} bytes long")
    return "/" + posixpath.normpath(text).lstrip("/")


def parse_path(text: str) -> str:
    """Normalise an absolute path and refuse one that is not under a root."""
    path = normalise_path(text)
    if not any(is_under(path, root) for root in ROOTS):
        raise OutsideSandbox(f"cannot use this path: it is outside {NAMES_OF_ROOTS}; use a path under one of them")
    return path


def parse_text(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    return text


AbsolutePath = Annotated[str, AfterValidator(normalise_path)]
SandboxPath = Annotated[str, AfterValidator(parse_path)]
CleanText = Annotated[str, AfterValidator(parse_text)]
