"""What every tool shares: the runner and the memory it uses, the paths it accepts, and the shape of its result.

Paths are checked here as text only. The runner, inside the container, checks where a path really leads.
"""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator, BaseModel, ConfigDict

from memo.documents import HOST, ArtifactKey, Author, Document, DocumentKey
from memo.ids import SessionRef
from sandboxd.errors import OutsideSandbox, ReadOnly
from sandboxd.memory.agent_memory import AgentMemory
from sandboxd.memory.outcomes import Queued, Written
from sandboxd.runner.calls import (
    Edited,
    Exec,
    ExecResult,
    FileStat,
    GlobResult,
    Grep,
    GrepResult,
    Process,
    TextSlice,
)
from sandboxd.sandboxes.view import SandboxView

WORKSPACE = "/workspace"
MEMO = "/workspace/memo"
SKILLS = "/skills"
ROOTS = (WORKSPACE, SKILLS, "/tmp", "/var/tmp")  # noqa: S108  # paths inside the container
MODEL_CHARS = 30_000
"""The most output that a model is shown. The rest is cut from the middle, which matters least."""


class ToolRunner(Protocol):
    """The calls a tool may make to the runner. `runner.client.RunnerClient` implements it."""

    async def exec(self, call: Exec) -> ExecResult: ...
    async def start_process(self, call: Exec, *, tty: bool = False) -> Process: ...
    async def read_text(self, path: str, offset: int = 1, limit: int = 2000) -> TextSlice: ...
    async def write_file(
        self,
        path: str,
        data: AsyncIterable[bytes] | bytes,
        *,
        make_parents: bool = True,
        size_bytes: int | None = None,
    ) -> FileStat: ...
    async def edit_file(self, path: str, old: str, new: str, *, replace_all: bool = False) -> Edited: ...
    async def glob(self, pattern: str, path: str = WORKSPACE, limit: int = 1000) -> GlobResult: ...
    async def grep(self, call: Grep) -> GrepResult: ...


class ToolMemory(Protocol):
    """The calls a tool may make to memory. `memory.Memory` implements it."""

    @property
    def agents(self) -> AgentMemory:
        """Documents as agents read and write them."""

    async def repeated(self, key: DocumentKey, author: Author) -> Written | Queued | None:
        """Return the outcome of this author's request if it was carried out before. Changes nothing."""

    async def read_artifact(self, key: ArtifactKey) -> Document | None:
        """Return a tool result from the store; None if it was never written."""

    async def write_artifact(
        self, key: ArtifactKey, content: str, *, based_on: str | None = None, author: Author = HOST
    ) -> Written | Queued:
        """Commit, then show it; raise RevisionConflict if the store's text does not have the hash `based_on`."""

    def shown_hash(self, key: ArtifactKey) -> str:
        """Return the hash of the text in the session's mirror; empty if the mirror has no such file."""


class Sandboxes(Protocol):
    def get(self, ref: SessionRef) -> SandboxView: ...


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What one call works with. The sandbox's user is looked up only on demand: most tools never need it."""

    ref: SessionRef
    runner: ToolRunner
    memory: ToolMemory | None = None
    sandboxes: Sandboxes | None = None
    request: str | None = None
    """The id of this call, the same when it is retried; None if the caller gave none."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """`content` is the text for the model; `details` are for the calling program."""

    ok: bool
    content: str
    details: dict[str, Any] = field(default_factory=dict)


class ToolArguments(BaseModel):
    """Arguments of a tool: unknown fields are refused and values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def normalise_path(text: str) -> str:
    """Normalise an absolute path. The runner checks where it leads."""
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    if not text.startswith("/"):
        raise ValueError("must be an absolute path, for example /workspace/notes.txt")
    if len(text.encode()) > 4095:
        raise ValueError("must be at most 4095 bytes long")
    return "/" + posixpath.normpath(text).lstrip("/")


def parse_path(text: str) -> str:
    """Normalise an absolute path and refuse one that is not under a root."""
    path = normalise_path(text)
    if not any(is_under(path, root) for root in ROOTS):
        raise OutsideSandbox(
            "cannot use this path: it is not under /workspace, /skills, /tmp or /var/tmp; use one that is"
        )
    return path


def parse_text(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    return text


AbsolutePath = Annotated[str, AfterValidator(normalise_path)]
SandboxPath = Annotated[str, AfterValidator(parse_path)]
CleanText = Annotated[str, AfterValidator(parse_text)]


def is_under(path: str, root: str) -> bool:
    return path == root or path.startswith(root + "/")


def check_writable(path: str) -> None:
    """Raise ReadOnly for a path that no tool may write. Memo paths never come here: see `memory`."""
    if is_under(path, SKILLS):
        raise ReadOnly(f"cannot write {path}: {SKILLS} is read-only; write under {WORKSPACE} instead")


def cut_for_model(text: str) -> tuple[str, int]:
    """Return the text, shortened for a model, and how many characters were cut from its middle."""
    left_out = len(text) - MODEL_CHARS
    if left_out <= 0:
        return text, 0
    head = MODEL_CHARS * 2 // 3
    tail = MODEL_CHARS - head
    return f"{text[:head]}\n[... {left_out} characters omitted ...]\n{text[-tail:]}", left_out
