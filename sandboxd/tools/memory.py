"""Memory for tools: memo paths are read and written through `Memory`, never by the runner.

Every tool writes memory through this module. `memory.agent_memory` states the rule; a refused write changes nothing
and returns the newer text.
"""

from __future__ import annotations

from collections.abc import Callable

from memo.documents import ArtifactKey, Author, Document, DocumentKey, Scope
from memo.errors import RevisionConflict
from memo.paths import ArtifactPath, parse_path, path_of
from sandboxd.errors import InvalidRequest, NotFound, StoreUnavailable
from sandboxd.memory.agent_memory import AgentWrite
from sandboxd.memory.outcomes import Committed, Queued
from sandboxd.models.tool import ToolResult
from sandboxd.tools.context import ToolContext, ToolMemory, cut_for_model

Change = Callable[[str], tuple[str, str]]
"""Maps the current text to the new text and a sentence about it; raises InvalidRequest or Unseen if it cannot."""

_MOST_TRIES = 10


class Unseen(Exception):
    """Raised when a change would replace text that the session has not seen."""


def memory_of(context: ToolContext) -> ToolMemory:
    if context.memory is None:
        raise StoreUnavailable("cannot use memory: this daemon has no store; keep files under /workspace instead")
    return context.memory


def key_of(context: ToolContext, path: str) -> DocumentKey | ArtifactKey:
    """Parse a memo path of this session. Only a path in the user's scope looks up the sandbox's user."""
    parsed = parse_path(path)
    if isinstance(parsed, ArtifactPath):
        return ArtifactKey(context.ref, parsed.tool_call)
    if parsed.scope is Scope.SESSION:
        return DocumentKey.of_session(context.ref, parsed.name)
    if context.sandboxes is None:
        raise NotFound("cannot find the user of this memory: the session has no sandbox")
    return DocumentKey.of_user(context.ref.tenant, context.sandboxes.get(context.ref).user, parsed.name)


async def write_memo(context: ToolContext, path: str, content: str, tool: str) -> ToolResult:
    """Replace the whole text at a memo path."""
    key = key_of(context, path)
    if isinstance(key, ArtifactKey):
        return await _write_artifact(context, key, content, memory_of(context).shown_hash(key), tool)
    return await write_document(context, key, content, tool)


async def write_document(
    context: ToolContext, key: DocumentKey, content: str, tool: str, sentence: str | None = None
) -> ToolResult:
    """Replace the whole text; merge what others changed since the session saw it, or refuse the write."""
    try:
        write = await memory_of(context).agents.write(context.ref, key, content, _author(context, tool))
    except RevisionConflict as error:
        return _refused_as_deleted(context, key) if error.deletion else _refused(context, key, error.current)
    return _done(context, key, write, sentence)


async def edit_memo(context: ToolContext, path: str, change: Change, tool: str, *, creates: bool = False) -> ToolResult:
    """Change part of the text at a memo path; with `creates`, a missing document counts as empty."""
    key = key_of(context, path)
    if isinstance(key, ArtifactKey):
        return await _edit_artifact(context, key, path, change, tool)
    return await change_document(context, key, change, tool, creates=creates)


async def change_document(
    context: ToolContext, key: DocumentKey, change: Change, tool: str, *, creates: bool = False
) -> ToolResult:
    """Apply a change to the current text; refuse it if it only applies to the text that the session saw."""
    if (done := await _repeated(context, key, tool)) is not None:
        return done
    agents = memory_of(context).agents
    document: Document | None = None
    for _ in range(_MOST_TRIES):
        document = await agents.newest(key)
        if document is None and not creates:
            raise NotFound(f"cannot edit {path_of(key)}: it does not exist yet; create it with Write")
        try:
            text, sentence = change("" if document is None else document.content)
        except Unseen:
            break
        except InvalidRequest:
            if await _applies_to_seen(context, key, change):
                break
            raise
        try:
            write = await agents.replace(context.ref, key, document, text, _author(context, tool))
        except RevisionConflict as error:  # another writer came first: retry on the newer text
            document = error.current
            continue
        return _done(context, key, write, sentence)
    return _refused(context, key, document)


async def append_memo(context: ToolContext, key: DocumentKey, text: str, tool: str) -> ToolResult:
    outcome = await memory_of(context).agents.append(context.ref, key, text, _author(context, tool))
    path, size_bytes = str(path_of(key)), len(text.encode())
    return _result(path, size_bytes, outcome, f"Added {size_bytes} bytes to {path}.")


async def _applies_to_seen(context: ToolContext, key: DocumentKey, change: Change) -> bool:
    seen = await memory_of(context).agents.seen_text(context.ref, key)
    if seen is None:
        return False
    try:
        change(seen)
    except (InvalidRequest, Unseen):
        return False
    return True


async def _edit_artifact(context: ToolContext, key: ArtifactKey, path: str, change: Change, tool: str) -> ToolResult:
    memory = memory_of(context)
    artifact = await memory.read_artifact(key)
    if artifact is None:
        raise NotFound(f"cannot edit {path}: it does not exist yet; create it with Write")
    if artifact.sha256 != memory.shown_hash(key):
        return _refused(context, key, artifact)
    text, sentence = change(artifact.content)
    return await _write_artifact(context, key, text, artifact.sha256, tool, sentence)


async def _write_artifact(
    context: ToolContext, key: ArtifactKey, text: str, based_on: str, tool: str, sentence: str | None = None
) -> ToolResult:
    author = _author(context, tool)
    try:
        outcome = await memory_of(context).write_artifact(key, text, based_on=based_on, author=author)
    except RevisionConflict as error:
        return _refused(context, key, error.current)
    path = str(path_of(key))
    return _result(path, outcome.size, outcome, sentence or _wrote(path, outcome))


async def _repeated(context: ToolContext, key: DocumentKey, tool: str) -> ToolResult | None:
    """Return the result of this call if the store has already carried it out: a change must not apply twice."""
    if context.request is None:
        return None
    outcome = await memory_of(context).repeated(key, _author(context, tool))
    path = str(path_of(key))
    return None if outcome is None else _result(path, outcome.size, outcome, f"{path} already has this change.")


def _done(context: ToolContext, key: DocumentKey, write: AgentWrite, sentence: str | None = None) -> ToolResult:
    """Describe the outcome of a write; after a merge, include what others changed."""
    path, outcome = str(path_of(key)), write.outcome
    sentence = sentence or _wrote(path, outcome)
    if not write.is_merged:
        return _result(path, outcome.size, outcome, sentence)
    sentence += " It was merged with changes that others made since this session last read it"
    shown, left_out = ("", 1) if write.theirs is None else cut_for_model(write.theirs)
    if left_out:
        sentence += f". Read {path} before replacing it again"
    else:
        memory_of(context).agents.saw_outcome(context.ref, key, outcome)
    result = _result(path, outcome.size, outcome, f"{sentence}:\n\n{shown}" if shown else f"{sentence}.")
    return result.model_copy(update={"details": {**result.details, "merged": True}})


def _refused(context: ToolContext, key: DocumentKey | ArtifactKey, now: Document | None) -> ToolResult:
    """Refuse a write and return the current text, which then counts as seen by the agent."""
    path = str(path_of(key))
    details: dict[str, object] = {"path": path, "code": RevisionConflict.code}
    if now is None:
        sentence = f"cannot write {path}: it has changed and its current text is unknown; Read it and try again."
        return ToolResult(ok=False, content=sentence, details=details)
    text, left_out = cut_for_model(now.content)
    details |= {"revision": now.revision, "sha256": now.sha256, "truncated": left_out > 0}
    advice = "apply your change to it and write again"
    if left_out:
        advice = "part of it is omitted here, so Read all of it before writing again"
    elif isinstance(key, DocumentKey):
        memory_of(context).agents.saw(context.ref, key, now)
    sentence = (
        f"cannot write {path}: it has changed since this session last read it, or was never read. Nothing was changed. "
        f"The current text (revision {now.revision}) follows; {advice}.\n\n{text}"
    )
    return ToolResult(ok=False, content=sentence, details=details)


def _refused_as_deleted(context: ToolContext, key: DocumentKey) -> ToolResult:
    """Refuse a write that is based on a deleted text. The agent then knows, so that its next write creates it again."""
    path = str(path_of(key))
    memory_of(context).agents.forget(context.ref, key)
    sentence = (
        f"cannot write {path}: it was deleted since this session last read it. Nothing was changed. "
        "If it should exist again, write it again."
    )
    return ToolResult(ok=False, content=sentence, details={"path": path, "code": RevisionConflict.code})


def _result(path: str, size_bytes: int, outcome: Committed | Queued, sentence: str) -> ToolResult:
    details: dict[str, object] = {"path": path, "size_bytes": size_bytes}
    if isinstance(outcome, Queued):
        queued = (
            f"{sentence} [queued: the store is unavailable; the write is saved and is delivered once the store is back]"
        )
        return ToolResult(ok=True, content=queued, details={**details, "queued": True})
    return ToolResult(
        ok=True, content=sentence, details={**details, "revision": outcome.revision, "sha256": outcome.sha256}
    )


def _wrote(path: str, outcome: Committed | Queued) -> str:
    return f"Wrote {outcome.size} bytes to {path}."


def _author(context: ToolContext, tool: str) -> Author:
    return Author("agent", context.ref.session, tool, context.request)
