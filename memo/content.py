"""The content of a document: a committed state, its hash and summary, and the diff between two states.

Pure and at the bottom of the library: it does not depend on keys and raises no errors.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Document:
    """One committed state of one document."""

    content: str
    revision: int
    sha256: str


def unified_diff(name: str, before: Document | None, after: Document) -> str:
    """Return the unified diff between two revisions; `before` is None for the state before the first."""
    old = before.content.splitlines(keepends=True) if before else []
    new = after.content.splitlines(keepends=True)
    lines = difflib.unified_diff(old, new, f"{name}@{before.revision if before else 0}", f"{name}@{after.revision}")
    # Without this, a last line that lacks a newline would run into the next line of the diff.
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


NUMBER_DIGITS = 13  # 52 bits: exact in every JSON reader


def number_of(sha256: str) -> int:
    """Return the number that stands for a revision in a store without revisions: derived from the text itself."""
    return int(sha256[:NUMBER_DIGITS], 16)


_MARKS = re.compile(r"^[#>*\-+\s\d.]*")
_SUMMARY = re.compile(r"<!-- summary: (.*) -->")


def summary_of(content: str) -> str:
    """Return the first line that has text, without Markdown markup, cut to 120 characters.

    A document may state its own summary: a profile starts with a comment `<!-- summary: … -->`.
    """
    for line in content[:4096].splitlines():
        own = _SUMMARY.fullmatch(line.strip())
        text = own[1].strip() if own else _MARKS.sub("", line).strip()
        if text:
            return text if len(text) <= 120 else text[:119] + "…"
    return ""
