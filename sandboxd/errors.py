"""Everything the daemon can answer with, as one tree.

    SandboxdError
    ├─ RequestError      InvalidRequest · Unauthorised · Conflict · OutsideSandbox · LimitReached · Busy
    │                    · NotFound: SandboxNotFound · SessionNotFound · ProcessNotFound · ToolNotFound · RouteNotFound
    ├─ FileError         FileNotFound (also a NotFound) · IsADirectory · NotADirectory · PermissionDenied · ReadOnly
    │                    · FileExists · WorkspaceFull
    ├─ SandboxError      NotReady · Paused · Gone (cause: exited, oom, killed, engine, idle, mirror) · ToolTimeout
    ├─ DependencyError   EngineUnavailable · EngineRefused · StoreUnavailable: StoreCorrupt
    │                    · HostError: HostFull · HostBusy · HostIO · HostCorrupt
    └─ InternalError     InvalidTransition · RegistryCorrupt

Every error has a stable `code`, says whether trying again can help, and a message that starts with
"cannot" and never holds document text. A command that exits 1 is a result, not an error.
"""

from __future__ import annotations

import errno
from typing import ClassVar, Literal

Cause = Literal["exited", "oom", "killed", "engine", "idle", "mirror"]


class SandboxdError(Exception):
    code: ClassVar[str] = "internal.error"
    retryable: ClassVar[bool] = False


class RequestError(SandboxdError):
    code = "request.invalid"


class InvalidRequest(RequestError):
    code = "request.invalid"


class Unauthorised(RequestError):
    code = "request.unauthorised"


class NotFound(RequestError):
    """There is no such thing, or it belongs to another tenant: the answer is the same."""

    code = "request.not_found"


class SandboxNotFound(NotFound):
    code = "sandbox.not_found"


class SessionNotFound(NotFound):
    code = "session.not_found"


class ProcessNotFound(NotFound):
    code = "process.not_found"


class ToolNotFound(NotFound):
    code = "tool.not_found"


class RouteNotFound(NotFound):
    code = "route.not_found"


class Conflict(RequestError):
    code = "request.conflict"


class OutsideSandbox(RequestError):
    code = "request.outside_sandbox"


class LimitReached(RequestError):
    code = "request.limit_reached"


class Busy(RequestError):
    code = "request.busy"
    retryable = True


class FileError(SandboxdError):
    """A path of the sandbox is not what the call needs."""

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


class WorkspaceFull(FileError):
    code = "sandbox.workspace_full"


class SandboxError(SandboxdError):
    code = "sandbox.error"


class NotReady(SandboxError):
    code = "sandbox.not_ready"
    retryable = True


class Paused(SandboxError):
    """The sandbox's container is frozen; it goes on where it was once it is unpaused."""

    code = "sandbox.paused"
    retryable = True


class Gone(SandboxError):
    """The sandbox's container is dead; `cause` says why."""

    code = "sandbox.gone"

    def __init__(self, message: str, cause: Cause) -> None:
        super().__init__(message)
        self.cause: Cause = cause


class ToolTimeout(SandboxError):
    code = "sandbox.tool_timeout"


class DependencyError(SandboxdError):
    code = "dependency.error"
    retryable = True


class EngineUnavailable(DependencyError):
    code = "engine.unavailable"


class EngineRefused(DependencyError):
    code = "engine.refused"
    retryable = False


class StoreUnavailable(DependencyError):
    """The store did not answer, failed, or answered with something that cannot be used."""

    code = "store.unavailable"


class StoreCorrupt(StoreUnavailable):
    """What the store holds cannot be read; asking again does not help."""

    code = "store.corrupt"
    retryable = False


class HostError(DependencyError):
    """The host does not give the daemon what it needs for its own files."""

    code = "host.error"


class HostFull(HostError):
    code = "host.full"


class HostBusy(HostError):
    """Another process holds a file of the daemon."""

    code = "host.busy"


class HostIO(HostError):
    """A file of the daemon cannot be read or written: its device fails, or is read-only."""

    code = "host.io"


class HostCorrupt(HostError):
    """A file of the daemon is not what it wrote."""

    code = "host.corrupt"
    retryable = False


class InternalError(SandboxdError):
    code = "internal.error"


class InvalidTransition(InternalError):
    code = "internal.invalid_transition"


class RegistryCorrupt(InternalError):
    code = "internal.registry_corrupt"


_OUT_OF_SOMETHING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_BROKEN = frozenset({errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.EUCLEAN})


def is_host_fault(error: OSError) -> bool:
    """Say whether it is the host's fault and not the caller's or ours."""
    return error.errno in _OUT_OF_SOMETHING or error.errno in _BROKEN


def host_error(what: str, error: OSError) -> HostError:
    """Return what a caller is told when the host is out of something, or broken."""
    kind = HostFull if error.errno in _OUT_OF_SOMETHING else HostIO
    return kind(f"cannot {what}: {error.strerror or error}")
