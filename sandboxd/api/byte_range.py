"""The Range header of a request for a file: which bytes it asks for. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

_ONE_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes from `first`, or the last ones if that is None; `length` of them, or all if that is None."""

    first: int | None
    length: int | None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the range that a header asks for; None if it is to be ignored: invalid, or several ranges."""
        found = _ONE_RANGE.fullmatch("".join(text.split()))
        if found is None or not (found[1] or found[2]):
            return None
        if not found[1]:
            return cls(None, int(found[2]))
        first = int(found[1])
        if not found[2]:
            return cls(first, None)
        last = int(found[2])
        return cls(first, last - first + 1) if first <= last else None

    def offset(self, size_bytes: int) -> int:
        """Return where the range begins in a file of this size."""
        return max(0, size_bytes - (self.length or 0)) if self.first is None else self.first
