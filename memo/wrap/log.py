"""LogProvider: logs one line for every call: verb, key, size, duration and outcome, never the content."""

from __future__ import annotations

import time
from collections.abc import Sized
from typing import Any

import structlog

from memo.documents import Document
from memo.errors import MemoError
from memo.wrap.wrapper import Call, Wrapper


class LogProvider(Wrapper):
    def __init__(self, inner: object, *, logger: Any = None) -> None:
        super().__init__(inner)
        self._logger = logger if logger is not None else structlog.get_logger("memo")

    async def _pass(self, call: Call) -> Any:
        started = time.monotonic()
        outcome, size, is_ok = "cancelled", _size(call.content), False
        try:
            result = await call.proceed()
            outcome, is_ok = "ok", True
            size = size if size is not None else _size(result)
            return result
        except MemoError as error:
            outcome = error.code
            raise
        except Exception as error:
            outcome = type(error).__name__  # not its message: a third-party provider may have put content in it
            raise
        finally:
            write = self._logger.info if is_ok else self._logger.warning
            duration_ms = round((time.monotonic() - started) * 1000, 3)
            write("memo call", verb=call.verb.name, key=call.key, size=size, duration_ms=duration_ms, outcome=outcome)


def _size(value: object) -> int | None:
    """Return the size of a text in bytes, the length of a list, or None for any other value."""
    if isinstance(value, Document):
        value = value.content
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))
    return len(value) if isinstance(value, Sized) else None
