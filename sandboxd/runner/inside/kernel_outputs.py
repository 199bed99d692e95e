"""What a run in a context prints, shows and returns, as lines for the daemon: bounded in all, each of bounded length.

A value that is too long for a line is sent before it, in parts. A text that does not fit is cut, any other value is
omitted, and both are said. It holds what the daemon has not taken yet, never more than the bound of the run.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

PART_CHARACTERS = 65_536
MAX_JSON_BYTES = 262_144
"""The bound of a value that is not text, which the daemon must parse at once."""
MAX_VALUES = 16
MAX_NAME_CHARACTERS = 1_000
MAX_TRACEBACK_CHARACTERS = 32_768
_TYPES = {"execute_result": "result", "display_data": "display", "update_display_data": "display"}
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class Outputs:
    """The outputs of one run. Iterating takes them out, and ends after `end`."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._lines: deque[dict[str, Any]] = deque()
        self._changed = asyncio.Event()
        self._is_over = False
        self.is_truncated = False

    def add(self, kind: str, content: dict[str, Any]) -> None:
        """Take a message of the kernel; ignore those that are not output."""
        if kind == "stream":
            self._add_text("stderr" if content.get("name") == "stderr" else "stdout", str(content.get("text", "")))
        elif kind == "error":
            self._add_error(content)
        elif kind in _TYPES:
            self._add_values(_TYPES[kind], dict(content.get("data", {})))
        self._changed.set()

    def end(self) -> None:
        self._is_over = True
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        while True:
            while self._lines:
                yield self._lines.popleft()
            if self._is_over:
                return
            self._changed.clear()
            await self._changed.wait()

    def _add_text(self, kind: str, text: str) -> None:
        for start in range(0, len(text), PART_CHARACTERS):
            if not self._left:
                self.is_truncated = True
                return
            part = self._fitting(text[start : start + PART_CHARACTERS])
            if part:
                self._lines.append({"type": kind, "text": part})

    def _add_error(self, content: dict[str, Any]) -> None:
        name, value = (str(content.get(field, ""))[:MAX_NAME_CHARACTERS] for field in ("ename", "evalue"))
        trace = _ANSI.sub("", "\n".join(map(str, content.get("traceback", ()))))
        if len(trace) > MAX_TRACEBACK_CHARACTERS:  # the end says what went wrong
            trace = "[...]\n" + trace[-MAX_TRACEBACK_CHARACTERS:]
            self.is_truncated = True
        # Small, and what matters most: it is sent even if there is no room left.
        self._left = max(0, self._left - len(name) - len(value) - len(trace))
        self._lines.append({"type": "error", "ename": name, "evalue": _ANSI.sub("", value), "traceback": trace})

    def _add_values(self, kind: str, values: dict[str, Any]) -> None:
        """Take the forms of one value, the smallest first: its text must not be lost because its picture is large."""
        texts = {name: value if isinstance(value, str) else None for name, value in values.items()}
        encoded = {name: texts[name] or json.dumps(value, ensure_ascii=False) for name, value in values.items()}
        kept: dict[str, Any] = {}
        omitted: dict[str, int] = {}
        for name in sorted(encoded, key=lambda name: len(encoded[name]))[:MAX_VALUES]:
            size = _size(encoded[name])
            text = texts[name]
            if size > self._left or (text is None and size > MAX_JSON_BYTES):
                omitted[name[:MAX_NAME_CHARACTERS]] = size
                self.is_truncated = True
                continue
            self._left -= size
            if text is None or len(text) <= PART_CHARACTERS:
                kept[name] = values[name]
                continue
            for start in range(0, len(text), PART_CHARACTERS):
                self._lines.append({"type": "part", "mime": name, "text": text[start : start + PART_CHARACTERS]})
        self._lines.append({"type": kind, "data": kept, "omitted": omitted})

    def _fitting(self, text: str) -> str:
        """Return as much of the text as fits, and count it."""
        size = _size(text)
        if size > self._left:
            self.is_truncated = True
            # Escapes make the size of a part of the text unknown, so it is found by halving.
            low, high = 0, len(text)
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if _size(text[:middle]) <= self._left else (low, middle - 1)
            text, size = text[:low], self._left
        self._left -= size
        return text


def _size(text: str) -> int:
    """Return the size of a text as JSON, which is what the daemon holds and its client gets."""
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")) - 2
