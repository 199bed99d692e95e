"""Ambiguous paths are refused before routing.

A proxy in front of the daemon may authorise by path, so the daemon must read a path as the proxy does: the same
segments, the same tenant. A path that can be read in two ways is an error: one with an encoded separator or control
character, an empty, `.` or `..` segment, an encoding that is not UTF-8, and percent-encoding of a letter, a digit or
one of `-._`, which never needs it. Other percent-encoding works as usual.

Below `…/ports/N/` a path belongs to the server in the sandbox, and reaches it byte for byte. There only segments that
may be read as `.` or `..` are refused, however they are encoded: with them a proxy could find another tenant.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from sandboxd.errors import InvalidRequest

_AMBIGUOUS = re.compile(
    rb"//|/\.{1,2}(?:/|\Z)|\\"
    rb"|%(?![0-9A-Fa-f]{2})"
    rb"|%(?:[01]|2[DEFdef]|3\d|4[1-9A-Fa-f]|5[\dAaCcFf]|6[1-9A-Fa-f]|7[\dAaFf])"
)
_PORT = re.compile(rb"(/v1/tenants/[^/]+/sessions/[^/]+/ports/[^/]+)/(.*)", re.DOTALL)
_DOTS = re.compile(rb"(?:^|[/\\])\.{1,2}(?:[/\\;]|\Z)")


def check_path(raw: bytes) -> None:
    """Raise InvalidRequest if this raw path can be read in more than one way."""
    if b"%" not in raw and b"//" not in raw and b"/." not in raw and b"\\" not in raw:
        return
    inner = _PORT.fullmatch(raw)
    if inner is not None:
        _check_inner(inner[2])
        raw = inner[1]
    is_ambiguous = _AMBIGUOUS.search(raw) is not None
    if not is_ambiguous:
        try:
            unquote_to_bytes(raw).decode("utf-8")
        except UnicodeDecodeError:
            is_ambiguous = True
    if is_ambiguous:
        raise InvalidRequest(
            "cannot use this path: it has an empty, '.' or '..' segment, or percent-encoding of a slash, a backslash, "
            "a control character, a plain letter or digit, or of bytes that are not UTF-8"
        )


def inner_path(raw: bytes) -> bytes:
    """Return the path that the server behind `…/ports/N` is asked for, as it was sent."""
    found = _PORT.fullmatch(raw)
    return b"/" if found is None else b"/" + found[2]


def _check_inner(raw: bytes) -> None:
    if _DOTS.search(unquote_to_bytes(raw)) is not None:
        raise InvalidRequest("cannot use this path: it has a '.' or '..' segment; send the path that it leads to")
