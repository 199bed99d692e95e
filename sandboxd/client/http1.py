"""HTTP/1.1 for both clients: encode a call, parse an answer. It does no I/O.

Only what this daemon sends is understood; anything else is a BadAnswer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httptools

from sandboxd.client.address import Address
from sandboxd.client.calls import Call
from sandboxd.errors import InvalidRequest

MAX_HEADERS = 100


class BadAnswer(Exception):
    """Raised for bytes that are not an HTTP answer, or not a complete one."""


class AnswerHeaders(dict[str, str]):
    """Headers by lowercase name, found in any case."""

    def get(self, name: str, default: str | None = None, /) -> str | None:  # type: ignore[override]
        return super().get(name.lower(), default)


class AnswerReader:
    """One answer, assembled from chunks of any size."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self.headers = AnswerHeaders()
        self.has_begun = False
        """Whether any byte has arrived."""
        self.status = 0
        """0 until the head has arrived."""
        self.is_whole = False
        self.may_keep_alive = False

    def feed(self, data: bytes) -> None:
        self.has_begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BadAnswer(str(error) or "the answer is not HTTP") from None

    def take(self) -> bytes:
        """Return the part of the body that arrived since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @property
    def held_bytes(self) -> int:
        return sum(map(len, self._pieces))

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS:
            raise BadAnswer("the answer has too many headers")
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # an earlier one is 100 Continue
            self.status = status

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self.status:
            self.is_whole = True
            self.may_keep_alive = self._parser.should_keep_alive()
        else:
            self.headers.clear()


def render_head(call: Call[Any], address: Address, size_bytes: int | None) -> bytes:
    """Return the request's line and headers. A body without a size goes out in chunks."""
    lines = [f"{call.method} {call.target} HTTP/1.1\r\nhost: {address.authority}\r\n"]
    if address.token is not None:
        lines.append(f"authorization: Bearer {address.token}\r\n")
    lines += _render(call.headers)
    if size_bytes is None:
        lines.append("transfer-encoding: chunked\r\n")
    elif size_bytes or call.method != "GET":
        lines.append(f"content-length: {size_bytes}\r\n")
    lines.append("\r\n")
    return "".join(lines).encode()


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


LAST_CHUNK = b"0\r\n\r\n"


def _render(headers: Mapping[str, str]) -> list[str]:
    lines = []
    for name, value in headers.items():
        if "\r" in value or "\n" in value or "\0" in value:
            raise InvalidRequest(f"cannot send the header {name}: it contains a line break or a NUL")
        lines.append(f"{name}: {value}\r\n")
    return lines
