"""The manifest: what a mirror shows, as values and as the JSON file that agents read.

It is written after the files and may briefly lag behind them, so a file is verified by its hash, not by the manifest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

VERSION = 1


class Shown(NamedTuple):
    """What one file of a mirror shows, and since when. A pending text is not in the store yet."""

    revision: int
    sha256: str
    size_bytes: int
    refreshed_at: float
    pending: bool = False


def encode(shown: Mapping[str, Shown]) -> bytes:
    """Return the JSON text. Formatted by hand: with ten thousand files, building dictionaries would dominate."""
    times: dict[float, str] = {}
    lines = []
    for relative, (revision, sha256, size_bytes, refreshed_at, is_pending) in sorted(shown.items()):
        at = times.get(refreshed_at)
        if at is None:
            at = times[refreshed_at] = _iso(refreshed_at)
        pending = ',"pending":true' if is_pending else ""
        lines.append(
            f'{encode_basestring_ascii(relative)}:{{"revision":{revision},"sha256":"{sha256}",'
            f'"size":{size_bytes},"refreshed_at":"{at}"{pending}}}'
        )
    return f'{{"version":{VERSION},"files":{{{",".join(lines)}}}}}\n'.encode()


def decode(encoded: bytes | None) -> dict[str, Shown]:
    """Return the files that a manifest lists; an unreadable manifest lists none."""
    try:
        files = json.loads(encoded or b"{}")["files"]
        return {str(relative): _shown(fields) for relative, fields in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def _shown(fields: Mapping[str, Any]) -> Shown:
    return Shown(
        int(fields["revision"]),
        str(fields["sha256"]),
        int(fields["size"]),
        datetime.fromisoformat(fields["refreshed_at"]).timestamp(),
        bool(fields.get("pending", False)),
    )
