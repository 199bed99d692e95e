"""The memory of a session and its user as tools: read, write, append, edit, list, history, restore.

A write names the revision that its author last saw, so no other writer's text is overwritten unseen (I13).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import anyio.to_thread
from pydantic import Field

from memo.errors import Absent, RevisionConflict
from sandboxd.client.request import Scope
from sandboxd.errors import InvalidRequest
from sandboxd.mcp.agent_session import AgentSession
from sandboxd.mcp.own_tools import OwnTool
from sandboxd.models.document import Written
from sandboxd.models.tool import ToolResult
from sandboxd.runner.inside.edit_rules import lines_of_matches, why_no_edit, why_no_match
from sandboxd.tools.arguments import ToolArguments, also
from sandboxd.tools.formats import ToolHints
from sandboxd.tools.nearest_lines import explain_mismatch

MAX_TEXT_CHARS = 200_000
"""The longest document that a call returns; a longer one is read in parts with Read, below /workspace/memo."""
USER_DOCUMENT = "USER.md"

_SCOPE = Field(
    default=None,
    description="session: this session's documents, such as NOTES.md and TODO.md; user: those of its user, such as "
    "USER.md, which all sessions of the user share. Default: user for USER.md, else session.",
)
_NAME = Field(
    min_length=1,
    description="The document's name, such as NOTES.md.",
)
_REASON = Field(default=None, max_length=1000, description="Why, in one line; kept in the history.")


_SHOWN_AT = re.compile(r"memo://|(/workspace/|\./)?memo/(?=session/|user/)")
"""What comes before the scope where a document is shown: in a resource's URI, and in a path of the sandbox."""
_ALIASES = also(
    name="document file_path path uri",
    content="contents text",
    old_string="old_str old",
    new_string="new_str new",
    revision="expected_revision version",
)


class _NamedArguments(ToolArguments):
    aliases = _ALIASES

    name: str = _NAME
    scope: Literal["session", "user"] | None = _SCOPE

    @property
    def place(self) -> tuple[str, Scope]:
        """The document's name and scope; a path below /workspace/memo or a resource's URI names it too."""
        shown = _SHOWN_AT.match(self.name)
        name = self.name if shown is None else self.name[shown.end() :]
        for scope in ("session", "user"):
            if name.startswith(f"{scope}/"):
                return name.removeprefix(f"{scope}/"), scope
        return name, self.scope or ("user" if name == USER_DOCUMENT else "session")


class _ReadArguments(_NamedArguments):
    revision: int | None = Field(default=None, ge=1, description="An old revision; the newest by default.")


class _WriteArguments(_NamedArguments):
    content: str = Field(description="The whole new text of the document.")
    revision: int | None = Field(
        default=None,
        ge=0,
        description="The revision that you read with memo_read. Leave it out only for a document that does not exist.",
    )
    reason: str | None = _REASON


class _AppendArguments(_NamedArguments):
    content: str = Field(min_length=1, description="The text to add.")
    reason: str | None = _REASON


class _EditArguments(_NamedArguments):
    old_string: str = Field(description="The text to replace.")
    new_string: str = Field(description="The text to put in its place.")
    replace_all: bool = Field(default=False, description="Replace every match; otherwise there must be exactly one.")
    reason: str | None = _REASON


class _ListArguments(ToolArguments):
    scope: Literal["session", "user"] | None = Field(default=None, description="session or user; both by default.")
    prefix: str = Field(default="", description="Only names that begin with this text.")


class _HistoryArguments(_NamedArguments):
    limit: int = Field(default=20, ge=1, le=200, description="The most revisions to return, newest first.")


class _RestoreArguments(_NamedArguments):
    revision: int = Field(ge=1, description="The revision to write again, from memo_history.")
    reason: str | None = _REASON


async def _read(session: AgentSession, arguments: _ReadArguments) -> ToolResult:
    name, scope = arguments.place
    document = await session.read_memo(name, scope, arguments.revision)
    if len(document.text) > MAX_TEXT_CHARS:
        content = (
            f"cannot show {name}: it has {len(document.text)} characters, and this tool shows at most "
            f"{MAX_TEXT_CHARS}; read it in parts with Read, file_path /workspace/memo/{scope}/{name}, offset and limit"
        )
        return ToolResult(ok=False, content=content, details={"code": "memo.too_large"})
    details = {"name": name, "scope": scope, "revision": document.revision}
    text = document.text if document.text.endswith("\n") else f"{document.text}\n"
    return ToolResult(ok=True, content=f"{text}[{name}, revision {document.revision}]", details=details)


async def _write(session: AgentSession, arguments: _WriteArguments) -> ToolResult:
    name, scope = arguments.place
    expected = arguments.revision or 0
    written = await session.write_memo(name, arguments.content, scope, expected, arguments.reason)
    return _written("Wrote", name, scope, written)


async def _append(session: AgentSession, arguments: _AppendArguments) -> ToolResult:
    name, scope = arguments.place
    return _written(
        "Appended to", name, scope, await session.append_memo(name, arguments.content, scope, arguments.reason)
    )


async def _edit(session: AgentSession, arguments: _EditArguments) -> ToolResult:
    """Edit by the rules of the tool Edit."""
    name, scope = arguments.place
    old, new = arguments.old_string, arguments.new_string
    if (reason := why_no_edit(name, old, new)) is not None:
        return _not_edited(f"{reason}.")
    document = await session.read_memo(name, scope)
    found = document.text.count(old)
    lines = lines_of_matches(document.text, old) if found > 1 else ()
    if (reason := why_no_match(name, found, arguments.replace_all, lines)) is not None:
        # In a thread, because the comparison may take some milliseconds.
        nearest = "" if found else await anyio.to_thread.run_sync(explain_mismatch, document.text, old)
        return _not_edited(f"{reason}. Nothing was changed.\n{nearest}".rstrip())
    text = document.text.replace(old, new)
    written = await session.write_memo(name, text, scope, document.revision, arguments.reason, merge=True)
    return _written("Edited", name, scope, written)


def _not_edited(content: str) -> ToolResult:
    return ToolResult(ok=False, content=content, details={"code": InvalidRequest.code})


async def _list(session: AgentSession, arguments: _ListArguments) -> ToolResult:
    lines, found = [], []
    scopes: tuple[Scope, ...] = ("session", "user") if arguments.scope is None else (arguments.scope,)
    for scope in scopes:
        for item in await session.list_memo(scope):
            if item.name.startswith(arguments.prefix):
                lines.append(
                    f"{scope}/{item.name}  revision {item.revision}  {item.size} bytes  {item.summary}".rstrip()
                )
                found.append({"scope": scope, "name": item.name, "revision": item.revision, "size": item.size})
    details = {"items": found[:500]}
    return ToolResult(ok=True, content="\n".join(lines[:500]) or "[no documents yet]", details=details)


async def _history(session: AgentSession, arguments: _HistoryArguments) -> ToolResult:
    name, scope = arguments.place
    revisions = await session.memo_history(name, scope, arguments.limit)
    lines = [
        f"{one.revision}  {one.at.isoformat(timespec='seconds')}  {one.actor}  {one.reason}".rstrip()
        for one in revisions
    ]
    details = {"items": [{"revision": one.revision, "actor": one.actor, "reason": one.reason} for one in revisions]}
    return ToolResult(ok=True, content="\n".join(lines) or "[no revisions]", details=details)


async def _restore(session: AgentSession, arguments: _RestoreArguments) -> ToolResult:
    name, scope = arguments.place
    written = await session.restore_memo(name, arguments.revision, scope, arguments.reason)
    return _written(f"Restored revision {arguments.revision} of", name, scope, written)


def _written(verb: str, name: str, scope: Scope, written: Written) -> ToolResult:
    details = {"name": name, "scope": scope, "revision": written.revision, "queued": written.queued}
    if written.queued:
        note = "The store is unavailable: the write is saved and delivered later, in order."
        return ToolResult(ok=True, content=f"{verb} {name}. {note}", details=details)
    merged = " It includes a change by another writer." if written.merged else ""
    return ToolResult(
        ok=True, content=f"{verb} {name}; it has revision {written.revision} now.{merged}", details=details
    )


def _forgiving(
    run: Callable[[AgentSession, Any], Awaitable[ToolResult]],
) -> Callable[[AgentSession, Any], Awaitable[ToolResult]]:
    """Return errors that the model can act on as results that say how to go on."""

    async def forgiving(session: AgentSession, arguments: Any) -> ToolResult:
        try:
            return await run(session, arguments)
        except Absent as error:
            step = (
                "memo_list shows which documents exist, memo_history the revisions of one that was deleted; memo_write "
                "creates one"
            )
            if getattr(arguments, "revision", None) is not None:
                step = "memo_history shows which revisions exist"
            return ToolResult(ok=False, content=f"{error}; {step}", details={"code": error.code})
        except RevisionConflict as error:
            return _conflict(arguments.name, error)

    return forgiving


def _conflict(name: str, error: RevisionConflict) -> ToolResult:
    details: dict[str, Any] = {"code": error.code}
    current = error.current
    if current is None or len(current.content) > MAX_TEXT_CHARS:
        content = f"cannot write {name}: it has changed; read it with memo_read and write again with that revision"
        return ToolResult(ok=False, content=content, details=details)
    details["revision"] = current.revision
    content = (
        f"cannot write {name}: it has revision {current.revision} now, and nothing was changed; put your change into "
        f"its current text, and write that with revision={current.revision}. Its current text is:\n{current.content}"
    )
    return ToolResult(ok=False, content=content, details=details)


MEMO_TOOLS = (
    OwnTool(
        "memo_read",
        "Read a document of the session's or the user's memory. The last line names its revision, which memo_write "
        "needs.",
        _ReadArguments,
        _forgiving(_read),
        ToolHints(title="Read a memory document", read_only=True),
    ),
    OwnTool(
        "memo_write",
        "Replace the whole text of a memory document, or create one. Give the revision that you read; if another "
        "writer was faster, nothing changes and you get the newer text. Every revision is kept.",
        _WriteArguments,
        _forgiving(_write),
        ToolHints(title="Write a memory document", destructive=False),
    ),
    OwnTool(
        "memo_append",
        "Add text at the end of a memory document, which is created if it does not exist.",
        _AppendArguments,
        _forgiving(_append),
        ToolHints(title="Append to a memory document", destructive=False),
    ),
    OwnTool(
        "memo_edit",
        "Replace a text in a memory document. It must match exactly once, unless replace_all is set.",
        _EditArguments,
        _forgiving(_edit),
        ToolHints(title="Edit a memory document", destructive=False),
    ),
    OwnTool(
        "memo_list",
        "List the documents of the session's and the user's memory with their revisions.",
        _ListArguments,
        _forgiving(_list),
        ToolHints(title="List memory documents", read_only=True),
    ),
    OwnTool(
        "memo_history",
        "List the revisions of a memory document, newest first: who wrote each, when and why.",
        _HistoryArguments,
        _forgiving(_history),
        ToolHints(title="History of a memory document", read_only=True),
    ),
    OwnTool(
        "memo_restore",
        "Write an old revision of a memory document again, as a new revision.",
        _RestoreArguments,
        _forgiving(_restore),
        ToolHints(title="Restore a memory document", destructive=False, idempotent=True),
    ),
)
