"""What the daemon answers, as frozen values. Output of processes and streams is bytes, as the command wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Sandbox:
    tenant: str
    session: str
    user: str
    agent: str | None
    state: str
    engine: str
    container: str | None
    created_at: datetime
    from_pool: bool
    cause: str | None
    image: str
    limits: Mapping[str, float]
    created: bool = False
    """Whether the call that returned this made the sandbox."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    exit_code: int | None
    """128 + n after signal n; None after a timeout."""
    stdout: str
    """As text: bytes that are not UTF-8 are replaced. `stdout_bytes` has them as they were written."""
    stderr: str
    timed_out: bool
    truncated: bool
    duration_ms: float
    limits_hit: tuple[str, ...] = ()
    raw: tuple[bytes, bytes] | None = field(default=None, repr=False, compare=False)
    """The bytes of stdout and stderr, if they are not all UTF-8."""

    @property
    def stdout_bytes(self) -> bytes:
        return self.stdout.encode() if self.raw is None else self.raw[0]

    @property
    def stderr_bytes(self) -> bytes:
        return self.stderr.encode() if self.raw is None else self.raw[1]


@dataclass(frozen=True, slots=True)
class ExecOutput:
    """A piece of a running command's output."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class Process:
    id: str
    command: str
    started_at: datetime | None
    running: bool
    exit_code: int | None
    output_bytes: int
    ended_by: str | None = None
    """Of one that was asked to end: the signal after which nothing of it was left."""


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    process: Process
    offset: int
    data: bytes
    next_offset: int


@dataclass(frozen=True, slots=True)
class FileInfo:
    path: str
    size_bytes: int
    mode: int
    modified_at: datetime | None


@dataclass(frozen=True, slots=True)
class ToolResult:
    ok: bool
    content: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolDescription:
    name: str
    description: str
    input_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    id: int
    kind: str
    at: datetime
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Document:
    """A text of memory, and the revision that it is."""

    text: str
    revision: int


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a write. A queued one is kept by the daemon for a store that is away, and has no revision yet."""

    revision: int | None
    sha256: str | None
    queued: bool = False
    merged: bool = False


@dataclass(frozen=True, slots=True)
class DocumentInfo:
    name: str
    revision: int
    sha256: str
    size: int
    updated_at: datetime
    summary: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Revision:
    revision: int
    actor: str
    session: str | None
    reason: str
    at: datetime
    sha256: str
    size: int
    redacted: bool = False


@dataclass(frozen=True, slots=True)
class Artifact:
    """A kept tool result. A plain store knows no more of it than its id."""

    id: str
    revision: int | None
    sha256: str | None
    size: int | None
    at: datetime | None


@dataclass(frozen=True, slots=True)
class MirrorFile:
    path: str
    revision: int
    sha256: str
    size: int
    in_sync: bool
    lag_ms: float
    pending: bool = False


@dataclass(frozen=True, slots=True)
class RefusedWrite:
    """A write that was queued while the store was down, and that the store will never take. It is kept."""

    path: str
    number: int
    size: int
    at: datetime
    why: str


@dataclass(frozen=True, slots=True)
class Session:
    tenant: str
    session: str
    user: str
    agent: str
    created_at: datetime
    updated_at: datetime
    turns: int
    tokens: int
    message_count: int


@dataclass(frozen=True, slots=True)
class Compaction:
    compacted: bool
    archived: int


@dataclass(frozen=True, slots=True)
class ShortenedMessages:
    """Messages with stubs in the place of long tool results, and the ids of the artifacts that hold those."""

    messages: list[dict[str, Any]]
    artifacts: list[str]


@dataclass(frozen=True, slots=True)
class Consolidated:
    """What a run of consolidation came to. `failed` are sessions that could not be summarised, each with its reason."""

    changed: bool
    revision: int | None
    diff: str
    sessions: tuple[str, ...]
    outcome: str
    reason: str
    failed: Mapping[str, str]
    dry_run: bool
    calls: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ConsolidationFailure:
    """Why something could not be consolidated, how many times in a row, and when it is tried again."""

    reason: str
    count: int
    retry_at: datetime


@dataclass(frozen=True, slots=True)
class ConsolidationState:
    """How a user stands. `why` says why the user is due or not; `failed_sessions` are still pending."""

    tenant: str
    user: str
    due: bool
    why: str
    look_again_at: datetime | None
    changed_sessions: int
    last_activity: datetime | None
    runs: int
    last_run_at: datetime | None
    last_outcome: str | None
    unfinished: bool
    revision: int | None
    held_by: str | None
    failure: ConsolidationFailure | None
    failed_sessions: Mapping[str, ConsolidationFailure]
    background: bool
    """Whether the daemon looks by itself who is due."""
