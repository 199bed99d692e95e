"""The rules for kept-alive connections: how long one is reused, and when a broken call is retried.

Pure; both transports use them. A call that may have run is never sent again unless repeating it is harmless.
"""

from __future__ import annotations

from typing import Any

from sandboxd.client.address import Address
from sandboxd.client.calls import Call
from sandboxd.client.errors import AnswerLost, DaemonUnreachable

IDLE_S = 30.0
"""An idle connection is closed after this time, well before the daemon closes it after 75 s."""


def is_unread(address: Address, error: BaseException | None) -> bool:
    """Return whether this failure, before any byte of the answer, proves that the request was not fully read.

    On a unix socket the kernel reports EPIPE when the peer was closed before the write, and ECONNRESET when the peer
    was closed with unread data. A daemon that dies with the request read shows as an end of file instead. Over TCP a
    reset proves nothing: anything on the way can send one.
    """
    return address.socket is not None and isinstance(error, BrokenPipeError | ConnectionResetError)


def may_resend(call: Call[Any], body: object, *, unread: bool) -> bool:
    """Return whether a broken call may be retried on another connection. A streamed body cannot be sent again."""
    return (call.is_safe or unread) and (body is None or isinstance(body, bytes))


def broken(call: Call[Any], address: Address, reason: str, *, unread: bool) -> DaemonUnreachable:
    """Return the error of a broken call that is not retried."""
    if unread:
        return DaemonUnreachable(f"cannot reach the daemon at {address}: it closed the connection ({reason})")
    if call.is_safe:
        advice = "repeat the call"
    else:
        advice = "check before you repeat it; a call with an idempotency key is safe to repeat"
    return AnswerLost(
        f"cannot tell the outcome: the connection to {address} was lost ({reason}), "
        f"and the call may or may not have been carried out; {advice}"
    )


def silent(call: Call[Any]) -> AnswerLost:
    return AnswerLost(f"cannot wait any longer: no answer within {call.timeout_s} s")
