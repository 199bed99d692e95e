"""PreparedText: a text checked, encoded, hashed and counted before any lock is taken.

Pure, but slow for a long text or an exact count: `off_loop` moves those to a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import anyio.to_thread

from memo.documents import Author, sha256_of, summary_of
from memo.errors import InvalidContent
from memo.ids import SessionId
from memo.limits import encode_text
from memo.stores.options import StoreOptions

SHORT_TEXT_CHARS = 1000


@dataclass(frozen=True, slots=True)
class PreparedText:
    text: str
    encoded: bytes
    sha256: str
    summary: str
    tokens: int
    tokens_exact: bool

    @property
    def size_bytes(self) -> int:
        return len(self.encoded)


def prepare_document(text: object, options: StoreOptions) -> PreparedText:
    encoded = encode_text("document", text, options.limits.document_bytes)
    checked = str(text)
    count = options.counter.count(checked)
    return PreparedText(checked, encoded, sha256_of(encoded), summary_of(checked), count.tokens, count.exact)


def prepare_artifact(text: object, options: StoreOptions) -> PreparedText:
    encoded = encode_text("artifact", text, options.limits.artifact_bytes)
    return PreparedText(str(text), encoded, sha256_of(encoded), "", 0, False)


SHORT_CHARS = 16_384
"""Preparing a text up to this length costs less than handing it to a thread."""


async def off_loop(
    prepare: Callable[[object, StoreOptions], PreparedText], text: object, options: StoreOptions
) -> PreparedText:
    """Prepare a text, in a thread if it would block the event loop: a long text, or an exact count."""
    is_quick = isinstance(text, str) and len(text) <= SHORT_CHARS and not options.counter.may_be_exact
    if is_quick:
        return prepare(text, options)
    return await anyio.to_thread.run_sync(prepare, text, options)


def check_author(author: Author) -> None:
    if author.session is not None:
        SessionId(author.session)
    _check_short_text("author's actor", author.actor)
    _check_short_text("author's reason", author.reason)
    check_request(author.request)


def check_request(request: str | None) -> None:
    if request is not None:
        _check_short_text("request id", request)


def _check_short_text(noun: str, value: object) -> None:
    if not isinstance(value, str) or len(value) > SHORT_TEXT_CHARS or "\0" in value:
        raise InvalidContent(f"cannot write: the {noun} must be text of at most {SHORT_TEXT_CHARS} characters")
    encode_text(noun, value, 4 * SHORT_TEXT_CHARS)
