"""Writing memory with a tool: a memo path goes to the store, with the revision its mirror showed, never to the runner.

Every tool that writes memory does it here. A conflict changes nothing, and its result holds the newer text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from memo.documents import ArtifactKey, Author, Document, DocumentKey, Expected, Scope, is_expected
from memo.errors import RevisionConflict
from memo.paths import ArtifactPath, parse_path, path_of
from sandboxd.errors import NotFound, StoreUnavailable
from sandboxd.mirror.answers import Queued, Written
from sandboxd.tools.context import ToolContext, ToolMemory, ToolResult, cut_for_model

Change = Callable[[str], tuple[str, str]]
"""From the text as it is to the text as it shall be, and a sentence about it."""


def memory_of(context: ToolContext) -> ToolMemory:
    if context.memory is None:
        raise StoreUnavailable("cannot write memory: this daemon has no store")
    return context.memory


def key_of(context: ToolContext, path: str) -> DocumentKey | ArtifactKey:
    """Parse a memo path in this session. Only a path of the user's asks whose sandbox it is."""
    parsed = parse_path(path)
    if isinstance(parsed, ArtifactPath):
        return ArtifactKey(context.ref, parsed.tool_call)
    if parsed.scope is Scope.SESSION:
        return DocumentKey.of_session(context.ref, parsed.name)
    if context.sandboxes is None:
        raise NotFound("cannot tell whose memory this is: the session has no sandbox")
    return DocumentKey.of_user(context.ref.tenant, context.sandboxes.get(context.ref).user, parsed.name)


async def write_memo(context: ToolContext, path: str, content: str, tool: str) -> ToolResult:
    """Replace the whole text, if nobody else changed it since the mirror showed it."""
    key = key_of(context, path)
    memory = memory_of(context)
    if isinstance(key, ArtifactKey):
        return await _commit_artifact(context, key, content, memory.shown_hash(key), tool)
    return await commit(context, key, content, await memory.shown(context.ref, path), tool)


async def edit_memo(context: ToolContext, path: str, change: Change, tool: str) -> ToolResult:
    """Change the text that the mirror shows. A text the store has replaced meanwhile is a conflict."""
    key = key_of(context, path)
    if isinstance(key, ArtifactKey):
        return await _edit_artifact(context, key, path, change, tool)
    if (done := await repeated(context, key, tool)) is not None:
        return done
    expected, document = await current(context, key)
    if document is None:
        raise NotFound(f"cannot edit {path}: it was never written")
    if is_stale(expected, document):
        return conflict_result(path, document)
    text, sentence = change(document.content)
    return await commit(context, key, text, document.revision, tool, sentence)


async def _edit_artifact(context: ToolContext, key: ArtifactKey, path: str, change: Change, tool: str) -> ToolResult:
    memory = memory_of(context)
    artifact = await memory.read_artifact(key)
    if artifact is None:
        raise NotFound(f"cannot edit {path}: it was never written")
    if artifact.sha256 != memory.shown_hash(key):
        return conflict_result(path, artifact)
    text, sentence = change(artifact.content)
    return await _commit_artifact(context, key, text, artifact.sha256, tool, sentence)


async def _commit_artifact(
    context: ToolContext, key: ArtifactKey, text: str, based_on: str, tool: str, sentence: str | None = None
) -> ToolResult:
    writing = memory_of(context).write_artifact(key, text, based_on=based_on, author=_author(context, tool))
    return await _written(key, text, sentence, writing)


async def _written(
    key: DocumentKey | ArtifactKey, text: str, sentence: str | None, writing: Awaitable[Written | Queued]
) -> ToolResult:
    """Say what came of a write: done, kept for later, or refused because somebody was faster."""
    path = str(path_of(key))
    try:
        outcome = await writing
    except RevisionConflict as error:
        return conflict_result(path, error.current)
    return _result(path, text, outcome, sentence or f"Wrote {_size(text)} bytes to {path}.")


async def repeated(context: ToolContext, key: DocumentKey, tool: str) -> ToolResult | None:
    """Return the result of this very call if the store has carried it out: its change must not be made twice."""
    if context.request is None:
        return None
    outcome = await memory_of(context).repeated(key, _author(context, tool))
    path = str(path_of(key))
    return None if outcome is None else _result(path, None, outcome, f"{path} has this change already.")


async def current(context: ToolContext, key: DocumentKey) -> tuple[Expected, Document | None]:
    """Return the revision that the mirror shows, and the document as the store has it."""
    memory = memory_of(context)
    expected = await memory.shown(context.ref, str(path_of(key)))
    return expected, await memory.read(key)


async def commit(
    context: ToolContext, key: DocumentKey, text: str, expected: Expected, tool: str, sentence: str | None = None
) -> ToolResult:
    writing = memory_of(context).write(key, text, expected=expected, author=_author(context, tool))
    return await _written(key, text, sentence, writing)


async def append_memo(context: ToolContext, key: DocumentKey, text: str, tool: str) -> ToolResult:
    outcome = await memory_of(context).append(key, text, author=_author(context, tool))
    path = str(path_of(key))
    return _result(path, text, outcome, f"Added {_size(text)} bytes to {path}.")


def is_stale(expected: Expected, document: Document) -> bool:
    """Say whether the store holds something else than the mirror shows."""
    return not is_expected(document.revision, expected)


def conflict_result(path: str, now: Document | None) -> ToolResult:
    details: dict[str, object] = {"path": path, "code": RevisionConflict.code}
    if now is None:
        return ToolResult(False, f"cannot write {path}: it is no longer there. Nothing was changed.", details)
    text, left_out = cut_for_model(now.content)
    details |= {"revision": now.revision, "sha256": now.sha256, "truncated": left_out > 0}
    return ToolResult(
        False,
        f"cannot write {path}: somebody else changed it meanwhile. Nothing was changed. Work from the newer text "
        f"(revision {now.revision}), which follows, and write again.\n\n{text}",
        details,
    )


def _result(path: str, text: str | None, outcome: Written | Queued, sentence: str) -> ToolResult:
    details: dict[str, object] = {"path": path, "size_bytes": outcome.size if text is None else _size(text)}
    if isinstance(outcome, Queued):
        queued = f"{sentence} [queued: the store is away; this is kept safely and goes there as soon as it is back]"
        return ToolResult(True, queued, {**details, "queued": True})
    return ToolResult(True, sentence, {**details, "revision": outcome.revision, "sha256": outcome.sha256})


def _author(context: ToolContext, tool: str) -> Author:
    return Author("agent", context.ref.session, tool, context.request)


def _size(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))
