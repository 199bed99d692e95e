"""The daemon's answers as frozen values. Output of processes and streams is bytes, exactly as written."""

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
    """Whether this call created the sandbox."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    exit_code: int | None
    """128 + n after signal n; None after a timeout."""
    stdout: str
    """Text in which bytes that are not UTF-8 are replaced; `stdout_bytes` has the original bytes."""
    stderr: str
    timed_out: bool
    truncated: bool
    duration_ms: float
    limits_hit: tuple[str, ...] = ()
    raw: tuple[bytes, bytes] | None = field(default=None, repr=False, compare=False)
    """The bytes of stdout and stderr, if they are not UTF-8."""

    @property
    def stdout_bytes(self) -> bytes:
        return self.stdout.encode() if self.raw is None else self.raw[0]

    @property
    def stderr_bytes(self) -> bytes:
        return self.stderr.encode() if self.raw is None else self.raw[1]


@dataclass(frozen=True, slots=True)
class ExecOutput:
    """A chunk of a running command's output."""

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
    """For a killed process: the signal that ended the last of its processes."""


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
    """A document's text and revision."""

    text: str
    revision: int


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of a write. A queued one waits for an unavailable store and has no revision yet."""

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
    """A stored tool result. A minimal store knows only its id."""

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
    """A write that was queued while the store was unavailable and then rejected by it for good. It is kept."""

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
    """Messages with long tool results replaced by stubs, and the ids of the artifacts that hold the results."""

    messages: list[dict[str, Any]]
    artifacts: list[str]


@dataclass(frozen=True, slots=True)
class Consolidated:
    """The result of a consolidation run. `failed` lists sessions that could not be summarised, with the reason."""

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
    """A failure: its reason, how often it happened in a row, and the time of the next try."""

    reason: str
    count: int
    retry_at: datetime


@dataclass(frozen=True, slots=True)
class ConsolidationState:
    """The status of a user. `why` says why a run is due or not; `failed_sessions` are still pending."""

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
    """Whether the daemon runs due users in the background."""
