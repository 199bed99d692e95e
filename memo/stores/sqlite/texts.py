"""Text as SQLite hands it back: bytes, for a TEXT column may hold any.

What is no UTF-8 is damage, named by its place. SQLite's own error would name no row, and would show the text.
"""

from __future__ import annotations

from memo.errors import Corrupt


def decoded(body: bytes, place: str) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise Corrupt(f"cannot read {place}: what is stored is not UTF-8 at byte {error.start}") from None
