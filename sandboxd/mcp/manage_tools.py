"""Tools that create, copy and remove sandboxes. Offered only to clients that were started with `manage`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from sandboxd.mcp.agent_session import AgentSession
from sandboxd.mcp.own_tools import OwnTool
from sandboxd.models.tool import ToolResult
from sandboxd.tools.arguments import ToolArguments
from sandboxd.tools.formats import ToolHints


class _CreateArguments(ToolArguments):
    image: str | None = Field(default=None, description="The image; the daemon's own by default.")
    from_snapshot: str | None = Field(default=None, description="Begin with the files of this snapshot.")
    recreate: bool = Field(
        default=False, description="Replace the container of an existing sandbox. Its files are kept."
    )


class _ForkArguments(ToolArguments):
    session: str | None = Field(default=None, description="The name of the new session; made up by default.")
    count: int = Field(default=1, ge=1, le=50, description="How many, if no name is given.")


class _SnapshotArguments(ToolArguments):
    name: str | None = Field(default=None, description="A name for people to recognise it by.")


class _DestroyArguments(ToolArguments):
    confirm: bool = Field(description="true: remove the sandbox with every file of its workspace. Memory is kept.")


async def _create(session: AgentSession, arguments: _CreateArguments) -> ToolResult:
    view = await session.create(
        image=arguments.image, from_snapshot=arguments.from_snapshot, recreate=arguments.recreate
    )
    what = "Created the sandbox" if view.created else "The sandbox exists"
    return _result(f"{what} of session {view.session} (user {view.user}); it is {view.state}.", state=view.state)


async def _fork(session: AgentSession, arguments: _ForkArguments) -> ToolResult:
    forks = await session.client.fork(
        session.name,
        arguments.session,
        count=None if arguments.session else arguments.count,
        tenant=session.tenant,
    )
    names = [item.session for item in forks.items]
    return _result(
        f"Made {len(names)} cop{'y' if len(names) == 1 else 'ies'} of this session, with its files and its memory: "
        f"{', '.join(names)}. Connect with session=NAME to work in one.",
        sessions=names,
    )


async def _snapshot(session: AgentSession, arguments: _SnapshotArguments) -> ToolResult:
    taken = await session.client.take_snapshot(session.name, arguments.name, tenant=session.tenant)
    return _result(
        f"Took snapshot {taken.id} of the workspace ({taken.size_bytes} bytes). sandbox_create with "
        "from_snapshot and recreate returns to it.",
        snapshot=taken.id,
    )


async def _destroy(session: AgentSession, arguments: _DestroyArguments) -> ToolResult:
    if not arguments.confirm:
        return ToolResult(ok=False, content="cannot remove the sandbox without confirm: true; nothing was removed")
    await session.destroy()
    return _result("Removed the sandbox with its files. Memory is kept; the next call creates a new sandbox.")


def _result(content: str, **details: Any) -> ToolResult:
    return ToolResult(ok=True, content=content, details=details)


MANAGE_TOOLS = (
    OwnTool(
        "sandbox_create",
        "Create this session's sandbox, or start it again. The first tool call does so too; call this to choose an "
        "image or a snapshot.",
        _CreateArguments,
        _create,
        ToolHints(title="Create the sandbox"),
    ),
    OwnTool(
        "sandbox_fork",
        "Make new sessions as copies of this one, with its files and its memory.",
        _ForkArguments,
        _fork,
        ToolHints(title="Fork the session", destructive=False),
    ),
    OwnTool(
        "sandbox_snapshot",
        "Copy the workspace as it is now; the snapshot outlives the sandbox.",
        _SnapshotArguments,
        _snapshot,
        ToolHints(title="Take a snapshot", destructive=False),
    ),
    OwnTool(
        "sandbox_destroy",
        "Remove this session's sandbox with every file of its workspace. Memory is kept.",
        _DestroyArguments,
        _destroy,
        ToolHints(title="Remove the sandbox", idempotent=True),
    ),
)
