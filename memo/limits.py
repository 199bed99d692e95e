"""Limits of what a store accepts: sizes in bytes of UTF-8, and the number of documents.

Checked before anything is written. Values that are too large, or not text, are refused, never trimmed or repaired.
"""

from __future__ import annotations

from dataclasses import dataclass

from memo.errors import InvalidContent, TooLarge

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoreLimits:
    document_bytes: int = 1 * MIB
    artifact_bytes: int = 16 * MIB
    message_bytes: int = 16 * MIB
    """One message, envelope, event or state, as JSON."""
    documents: int = 1000
    """How many documents a session or a user may have. Deleted ones, NOTES.md, TODO.md and USER.md do not count."""


def check_size(noun: str, size_bytes: int, limit_bytes: int) -> None:
    """Raise TooLarge if `size_bytes` is over the limit."""
    if size_bytes > limit_bytes:
        raise TooLarge(f"cannot store this {noun}: {size_bytes} bytes, and the limit is {limit_bytes}")


def encode_text(noun: str, text: object, limit_bytes: int) -> bytes:
    """Return the text as UTF-8, or raise InvalidContent or TooLarge."""
    if not isinstance(text, str):
        raise InvalidContent(f"cannot store this {noun}: it is not text")
    if len(text) > limit_bytes:  # a character is at least one byte, so a huge text is refused without being encoded
        check_size(noun, len(text), limit_bytes)
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidContent(
            f"cannot store this {noun}: character {error.start} is half of a surrogate pair and has no UTF-8 form"
        ) from None
    check_size(noun, len(encoded), limit_bytes)
    return encoded
