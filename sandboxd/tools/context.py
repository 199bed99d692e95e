"""What every tool shares: the runner and the memory it uses, and a bound on its text."""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass
from typing import Protocol

from memo.documents import HOST, ArtifactKey, Author, Document, DocumentKey
from memo.ids import SessionRef
from sandboxd.contexts.contexts import ContextRunner
from sandboxd.errors import ReadOnly
from sandboxd.memory.agent_memory import AgentMemory
from sandboxd.memory.outcomes import Committed, Queued
from sandboxd.models.files import FileInfo
from sandboxd.models.paths import is_under
from sandboxd.models.sandbox import SandboxView
from sandboxd.runner.calls import CommandResult, Edited, Exec, GlobResult, Grep, GrepResult, TextSlice
from sandboxd.runner.inside.container_paths import SKILLS, WORKSPACE

MODEL_CHARS = 30_000
"""The most output that a model is shown. The rest is cut from the middle, which matters least."""


class ToolRunner(ContextRunner, Protocol):
    """The calls a tool may make to the runner. `runner.client.RunnerClient` implements it."""

    async def exec(self, call: Exec) -> CommandResult: ...
    async def write_process(self, process_id: str, data: bytes, *, eof: bool = False) -> int: ...
    async def read_text(self, path: str, offset: int = 1, limit: int = 2000) -> TextSlice: ...
    async def write_file(
        self,
        path: str,
        data: AsyncIterable[bytes] | bytes,
        *,
        make_parents: bool = True,
        size_bytes: int | None = None,
    ) -> FileInfo: ...
    async def edit_file(self, path: str, old: str, new: str, *, replace_all: bool = False) -> Edited: ...
    async def glob(self, pattern: str, path: str = WORKSPACE, limit: int = 1000) -> GlobResult: ...
    async def grep(self, call: Grep) -> GrepResult: ...


class ToolMemory(Protocol):
    """The calls a tool may make to memory. `memory.Memory` implements it."""

    @property
    def agents(self) -> AgentMemory:
        """Documents as agents read and write them."""

    async def repeated(self, key: DocumentKey, author: Author) -> Committed | Queued | None:
        """Return the outcome of this author's request if it was carried out before. Changes nothing."""

    async def read_artifact(self, key: ArtifactKey) -> Document | None:
        """Return a tool result from the store; None if it was never written."""

    async def write_artifact(
        self, key: ArtifactKey, content: str, *, based_on: str | None = None, author: Author = HOST
    ) -> Committed | Queued:
        """Commit, then update the mirrors; raise RevisionConflict if the hash of the store's text is not `based_on`."""

    def shown_hash(self, key: ArtifactKey) -> str:
        """Return the hash of the text in the session's mirror; empty if the mirror has no such file."""


class SandboxLookup(Protocol):
    def get(self, ref: SessionRef) -> SandboxView: ...


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What one call works with. The sandbox's user is looked up only on demand: most tools never need it."""

    ref: SessionRef
    runner: ToolRunner
    memory: ToolMemory | None = None
    sandboxes: SandboxLookup | None = None
    request: str | None = None
    """The id of this call, the same when it is retried; None if the caller gave none."""


def check_writable(path: str) -> None:
    """Raise ReadOnly for a path that no tool may write. Memo paths are handled elsewhere: see `memory`."""
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
