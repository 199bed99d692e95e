"""What a client raises: its own errors, and the daemon's, rebuilt from their problem by code.

An error of the daemon is an instance of the same class as inside the daemon, so one `except` fits both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memo.errors import MemoError, RevisionConflict
from sandboxd.errors import DependencyError, FileError, Gone, InternalError, RequestError, SandboxdError, SandboxError


class DaemonUnreachable(SandboxdError):
    """There is no daemon at this address, or it closed the connection unread. Nothing was carried out."""

    code = "daemon.unreachable"
    retryable = True


class AnswerLost(DaemonUnreachable):
    """The connection broke before the answer: the daemon may have done what was asked, or not."""

    code = "daemon.answer_lost"
    retryable = False


class WriteIncomplete(SandboxdError):
    """A process took `taken_bytes` of the data and no more. Writing the same data again would write those twice."""

    code = "process.write_incomplete"

    def __init__(self, taken_bytes: int, total_bytes: int, reason: Exception) -> None:
        super().__init__(
            f"cannot write all of the data: {taken_bytes} of {total_bytes} bytes were taken, then: {reason}; "
            f"go on with byte {taken_bytes}, or repeat the call with the same idempotency key if it had one"
        )
        self.taken_bytes = taken_bytes


_FAMILIES: dict[str, type[SandboxdError]] = {
    "request": RequestError,
    "session": RequestError,
    "process": RequestError,
    "tool": RequestError,
    "route": RequestError,
    "file": FileError,
    "sandbox": SandboxError,
    "dependency": DependencyError,
    "engine": DependencyError,
    "store": DependencyError,
    "host": DependencyError,
    "consolidation": DependencyError,
    "internal": InternalError,
}


KNOWN_ERRORS: tuple[type[SandboxdError], type[MemoError]] = (SandboxdError, MemoError)
"""Everything the daemon may answer with, for an `except` clause."""


def _descendants(parent: type[Exception]) -> Iterator[type[Exception]]:
    yield parent
    for child in parent.__subclasses__():
        yield from _descendants(child)


_BY_CODE: dict[str, type[Exception]] = {
    kind.code: kind  # type: ignore[attr-defined]
    for root in reversed(KNOWN_ERRORS)
    for kind in _descendants(root)
    if kind.__module__ in ("memo.errors", "sandboxd.errors")
}
"""Every class by its code. A child comes before the parent whose code it shares, the daemon's before memo's."""


def rebuild(problem: Mapping[str, Any]) -> Exception:
    """Turn a problem into the error it came from. A code this client does not know keeps its code and family."""
    code = str(problem.get("code", "internal.error"))
    detail = str(problem.get("detail", "cannot say what went wrong"))
    if code == Gone.code:
        return Gone(detail, problem.get("cause", "engine"))
    known = _BY_CODE.get(code)
    if code == "memo.conflict":
        return _conflict(problem, detail)
    if known is not None:
        return known(detail)
    family = _FAMILIES.get(code.partition(".")[0], SandboxdError)
    fields = {"code": code, "retryable": problem.get("retryable") is True}
    unknown: type[SandboxdError] = type(family.__name__, (family,), fields)
    return unknown(detail)


def _conflict(problem: Mapping[str, Any], detail: str) -> Exception:
    """A conflict comes with the document as it is now."""
    from memo.documents import Document  # the async client has loaded it; the command line rarely needs it

    text, revision, sha256 = problem.get("text"), problem.get("revision"), problem.get("sha256")
    if isinstance(text, str) and isinstance(revision, int) and isinstance(sha256, str):
        return RevisionConflict(detail, Document(text, revision, sha256))
    return RevisionConflict(detail)
