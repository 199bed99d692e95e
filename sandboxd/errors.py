"""The errors that the daemon returns, as one tree.

    SandboxdError
    ├─ RequestError      InvalidRequest · Unauthorised · OutsideSandbox · LimitReached · ContextUnsupported
    │                    · PreviewUnsupported · CallCancelled · Busy: ContextBusy · Conflict: Differs · ContextExists
    │                    · NotFound: SandboxNotFound · SessionNotFound · SnapshotNotFound · ProcessNotFound
    │                      · ContextNotFound · ToolNotFound · RouteNotFound
    ├─ FileError         FileNotFound (also a NotFound) · IsADirectory · NotADirectory · PermissionDenied · ReadOnly
    │                    · FileExists · DirectoryNotEmpty · RangeNotSatisfiable · WorkspaceFull
    ├─ SandboxError      NotReady · Paused · Hibernated · Gone (cause: exited, oom, killed, engine, mirror)
    │                    · ToolTimeout · NothingListens · StreamClosed · BadAnswer · ContextFailed
    ├─ DependencyError   EngineUnavailable · EngineRefused · CredentialUnavailable
    │                    · StoreUnavailable: StoreCorrupt
    │                    · HostError: HostFull · HostBusy · HostIO · HostCorrupt
    └─ InternalError     InvalidTransition · RegistryCorrupt

Every error has a stable `code`, a `retryable` flag, and a message that starts with "cannot" and never contains document
text. A command that exits 1 is a result, not an error.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

Cause = Literal["exited", "oom", "killed", "engine", "mirror", "idle", "lifetime", "asked"]
"""Why a sandbox has no container: it died (the first five), or it hibernates or is paused."""


class SandboxdError(Exception):
    code: ClassVar[str] = "internal.error"
    retryable: ClassVar[bool] = False


class RequestError(SandboxdError):
    code = "request.invalid"


class InvalidRequest(RequestError):
    code = "request.invalid"


class Unauthorised(RequestError):
    code = "request.unauthorised"


class CallCancelled(RequestError):
    """The call was cancelled by its id."""

    code = "request.cancelled"


class NotFound(RequestError):
    """The resource does not exist or belongs to another tenant; the caller cannot tell which."""

    code = "request.not_found"


class SandboxNotFound(NotFound):
    code = "sandbox.not_found"


class SessionNotFound(NotFound):
    code = "session.not_found"


class SnapshotNotFound(NotFound):
    code = "snapshot.not_found"


class ProcessNotFound(NotFound):
    code = "process.not_found"


class ToolNotFound(NotFound):
    code = "tool.not_found"


class RouteNotFound(NotFound):
    code = "route.not_found"


class ContextNotFound(NotFound):
    code = "context.not_found"


class Conflict(RequestError):
    code = "request.conflict"


class Differs(Conflict):
    """The session's sandbox exists with other properties than the requested ones; `differences` names them."""

    code = "sandbox.differs"

    def __init__(self, message: str, differences: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.differences = dict(differences or {})


class OutsideSandbox(RequestError):
    code = "request.outside_sandbox"


class LimitReached(RequestError):
    code = "request.limit_reached"


class Busy(RequestError):
    code = "request.busy"
    retryable = True


class ContextBusy(Busy):
    """The context runs other code; it runs one piece of code at a time."""

    code = "context.busy"


class ContextExists(Conflict):
    code = "context.exists"


class ContextUnsupported(RequestError):
    """The image of the sandbox has no kernel."""

    code = "context.unsupported"


class PreviewUnsupported(RequestError):
    """The daemon does not serve previews."""

    code = "preview.unsupported"


class FileError(SandboxdError):
    """A path in the sandbox cannot be used for this call."""

    code = "file.error"


class FileNotFound(FileError, NotFound):
    code = "file.not_found"


class IsADirectory(FileError):
    code = "file.is_directory"


class NotADirectory(FileError):
    code = "file.not_a_directory"


class PermissionDenied(FileError):
    """The mode of the file, or of a directory on its path, refuses the agent's user."""

    code = "file.permission_denied"


class ReadOnly(FileError):
    """The file system is read-only there, whatever the mode of the file."""

    code = "file.read_only"


class FileExists(FileError):
    code = "file.exists"


class DirectoryNotEmpty(FileError):
    code = "file.not_empty"


class RangeNotSatisfiable(FileError):
    """The requested range begins after the end of the file, which has `size_bytes`."""

    code = "file.range_not_satisfiable"

    def __init__(self, message: str, size_bytes: int | None = None) -> None:
        super().__init__(message)
        self.size_bytes = size_bytes


class WorkspaceFull(FileError):
    code = "sandbox.workspace_full"


class SandboxError(SandboxdError):
    code = "sandbox.error"


class NotReady(SandboxError):
    code = "sandbox.not_ready"
    retryable = True


class Paused(SandboxError):
    """The sandbox's container is frozen, and continues where it stopped once it is unpaused."""

    code = "sandbox.paused"
    retryable = True


class Hibernated(SandboxError):
    """The sandbox has no container now; its files are kept, and it can be resumed."""

    code = "sandbox.hibernated"


class Gone(SandboxError):
    """The sandbox's container is dead; `cause` says why."""

    code = "sandbox.gone"

    def __init__(self, message: str, cause: Cause) -> None:
        super().__init__(message)
        self.cause: Cause = cause


class ContextFailed(SandboxError):
    """The process that serves a context has ended, or answers with something that cannot be used."""

    code = "context.failed"


class ToolTimeout(SandboxError):
    code = "sandbox.tool_timeout"


class NothingListens(SandboxError):
    """No process in the sandbox listens on this port or socket."""

    code = "port.closed"
    retryable = True


class StreamClosed(SandboxError):
    """The process at the other end of a stream has closed or reset it."""

    code = "port.stream_closed"


class BadAnswer(SandboxError):
    """The server in the sandbox did not answer, or not with HTTP that can be passed on."""

    code = "port.bad_answer"


class DependencyError(SandboxdError):
    code = "dependency.error"
    retryable = True


class EngineUnavailable(DependencyError):
    code = "engine.unavailable"


class EngineRefused(DependencyError):
    code = "engine.refused"
    retryable = False


class CredentialUnavailable(DependencyError):
    """The source of a credential's secret gives none, or one that cannot be used."""

    code = "credential.unavailable"


class StoreUnavailable(DependencyError):
    """The store did not answer, failed, or answered with something that cannot be used."""

    code = "store.unavailable"


class StoreCorrupt(StoreUnavailable):
    """The store's content cannot be read, and a retry does not help."""

    code = "store.corrupt"
    retryable = False


class HostError(DependencyError):
    """The daemon cannot use its own files because of a fault of the host."""

    code = "host.error"


class HostFull(HostError):
    code = "host.full"


class HostBusy(HostError):
    """Another process has locked one of the daemon's files."""

    code = "host.busy"


class HostIO(HostError):
    """One of the daemon's files cannot be read or written: its device fails or is read-only."""

    code = "host.io"


class HostCorrupt(HostError):
    """One of the daemon's files is damaged."""

    code = "host.corrupt"
    retryable = False


class InternalError(SandboxdError):
    code = "internal.error"


class InvalidTransition(InternalError):
    code = "internal.invalid_transition"


class RegistryCorrupt(InternalError):
    code = "internal.registry_corrupt"


_EXHAUSTED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_BROKEN = frozenset({errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.EUCLEAN})


def is_host_fault(error: OSError) -> bool:
    """Return whether the host, rather than the caller or the daemon, is at fault."""
    return error.errno in _EXHAUSTED or error.errno in _BROKEN


def host_error(what: str, error: OSError) -> HostError:
    """Return the error for a caller when the host has run out of a resource or a device fails."""
    kind = HostFull if error.errno in _EXHAUSTED else HostIO
    return kind(f"cannot {what}: {error.strerror or error}")
