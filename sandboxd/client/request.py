"""A request of the API and its answer, and the rules for sending a request again. It does no I/O.

A request that may have been carried out is never sent again unless repeating it is harmless.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from urllib.parse import quote, urlencode

from memo.ids import SessionId, TenantId, UserId
from sandboxd.client.address import Address
from sandboxd.client.errors import AnswerLost, DaemonUnreachable
from sandboxd.errors import InvalidRequest

Scope = Literal["session", "user"]

SHORT_S = 30.0
CREATE_S = 180.0
STORE_S = 60.0
GRACE_S = 30.0
"""How much longer than the work itself a client waits for an answer."""
MAX_WORK_S = 2_592_000.0
"""The longest timeout of a command that any daemon accepts."""
IDLE_S = 30.0
"""An idle connection is closed after this time, well before the daemon closes it after 75 s."""
SOCKET_SILENT_S = 90.0
"""How long the daemon may be silent on a WebSocket: it pings every 20 s."""
MAX_ANSWER_BYTES = 1_073_741_824
"""The largest answer that is read as a whole; a larger file must be streamed."""


class AnswerHeaders(Protocol):
    """Headers by name, in any case."""

    def get(self, name: str, /) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    headers: AnswerHeaders = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `timeout_s` is how long the daemon may be silent."""

    method: str
    target: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = SHORT_S
    is_idempotent: bool = False
    """Whether the request is idempotent, whatever happens in between."""

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            if "\r" in value or "\n" in value or "\0" in value:
                raise InvalidRequest(f"cannot send the header {name}: it contains a line break or a NUL")

    @property
    def is_safe(self) -> bool:
        """Whether the request may be sent again after its answer was lost."""
        return self.method in ("GET", "HEAD") or self.is_idempotent or "idempotency-key" in self.headers


def json_request(
    method: str,
    target: str,
    content: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float | None = SHORT_S,
    is_idempotent: bool = False,
) -> Request:
    sent = dict(headers or {})
    body = None
    if content is not None:
        body = json.dumps(content, separators=(",", ":")).encode()
        sent.setdefault("content-type", "application/json")
    if key is not None:
        sent["idempotency-key"] = key
    return Request(method, target, body, sent, timeout_s, is_idempotent)


def text_request(
    method: str, target: str, text: str, media_type: str, headers: Mapping[str, str] | None = None
) -> Request:
    return Request(method, target, encode_text(text), {"content-type": media_type, **(headers or {})}, STORE_S)


def encode_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            "cannot send this text: it contains half of a surrogate pair, which UTF-8 cannot encode"
        ) from None


def timeout_for(work_s: float, grace_s: float = GRACE_S) -> float:
    """Return how long to wait for work that may take `work_s`; the daemon refuses a time out of range at once."""
    return (work_s if 0 <= work_s <= MAX_WORK_S else 0) + grace_s


def tenant_path(tenant: str) -> str:
    """Return a tenant's path. Ids are validated, because one with a slash would select another route."""
    return f"/v1/tenants/{quote(TenantId(tenant), safe='')}"


def session_path(tenant: str, session: str) -> str:
    return f"{tenant_path(tenant)}/sessions/{quote(SessionId(session), safe='')}"


def user_path(tenant: str, user: str) -> str:
    return f"{tenant_path(tenant)}/users/{quote(UserId(user), safe='')}"


def owner_path(tenant: str, owner: str, scope: Scope) -> str:
    if scope == "session":
        return session_path(tenant, owner)
    if scope == "user":
        return user_path(tenant, owner)
    raise InvalidRequest("cannot use this scope: it must be session or user")


def with_query(path: str, /, **fields: Any) -> str:
    """Return a path whose query holds the fields that have a value; a list is given once for each item."""
    query = urlencode(given(**fields), doseq=True)
    return f"{path}?{query}" if query else path


def author_headers(actor: str | None, reason: str | None, key: str | None) -> dict[str, str]:
    headers = given(**{"x-memo-actor": actor, "x-memo-reason": reason, "idempotency-key": key})
    for name, value in headers.items():
        if not value.isprintable():
            raise InvalidRequest(f"cannot send {name}: it must be one line of printable characters")
    return headers


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that have a value; the daemon sets the defaults."""
    return {name: value for name, value in fields.items() if value is not None}


def is_unread(address: Address, error: BaseException | None) -> bool:
    """Return whether this failure proves that the request was not fully read.

    On a unix socket the kernel reports EPIPE when the peer was closed before the write, and ECONNRESET when the peer
    was closed with unread data. A daemon that dies with the request read shows as an end of file instead. Over TCP a
    reset proves nothing: any hop on the way can send one.
    """
    # Not isinstance: http.client's RemoteDisconnected is an end of file, and a subclass of ConnectionResetError.
    return address.socket is not None and type(error) in (BrokenPipeError, ConnectionResetError)


def broken(request: Request, address: Address, reason: str, *, unread: bool) -> DaemonUnreachable:
    """Return the error of a broken request that is not sent again."""
    if unread:
        return DaemonUnreachable(f"cannot reach the daemon at {address}: it closed the connection ({reason})")
    if request.is_safe:
        advice = "repeat the call"
    else:
        advice = "check before you repeat it; a call with an idempotency key is safe to repeat"
    return AnswerLost(
        f"cannot tell the outcome: the connection to {address} was lost ({reason}), "
        f"and the call may or may not have been carried out; {advice}"
    )


def socket_refused(address: Address, reason: str) -> DaemonUnreachable:
    """Return the error of a WebSocket that was closed before a message was sent."""
    return DaemonUnreachable(f"cannot send: the WebSocket to {address} is closed ({reason}); open it again")


def socket_lost(address: Address, reason: str) -> AnswerLost:
    """Return the error of a WebSocket that ended."""
    return AnswerLost(
        f"cannot go on: the WebSocket to {address} was lost ({reason}); the process keeps running, attach to it again"
    )


def silent(request: Request) -> AnswerLost:
    return AnswerLost(f"cannot wait any longer: no answer within {request.timeout_s} s")


def too_large() -> InvalidRequest:
    return InvalidRequest(
        f"cannot read the answer: it is larger than {MAX_ANSWER_BYTES} bytes; stream the file with open_file"
    )
