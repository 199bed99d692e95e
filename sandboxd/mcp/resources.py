"""A session's memory as MCP resources: documents of the session and its user, and stored tool results.

`memo://session/NAME`, `memo://user/NAME` and `memo://session/tool-results/ID`, always of the client's own session.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    Annotations,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from memo.errors import MemoError
from sandboxd.client.request import Scope
from sandboxd.errors import InvalidRequest, NotFound
from sandboxd.mcp.agent_session import AgentSession
from sandboxd.models.artifact import Artifact
from sandboxd.models.document import DocumentInfo

MAX_TEXT_CHARS = 1_000_000
"""The longest text that a resource returns."""
PAGE = 200

_SCHEME = "memo://"
_ARTIFACTS = "tool-results/"
_MARKDOWN = "text/markdown"
_PLAIN = "text/plain"


@dataclass(frozen=True, slots=True)
class MemoResource:
    """What a URI names."""

    scope: Scope
    name: str
    is_artifact: bool = False

    @property
    def uri(self) -> str:
        name = f"{_ARTIFACTS}{self.name}" if self.is_artifact else self.name
        return f"{_SCHEME}{self.scope}/{quote(name, safe='/')}"


def parse_uri(uri: str) -> MemoResource:
    scope, _, name = unquote(uri.removeprefix(_SCHEME)).partition("/")
    if not uri.startswith(_SCHEME) or scope not in ("session", "user") or not name:
        raise InvalidRequest(
            "cannot use this URI: it must be memo://session/NAME, memo://user/NAME or memo://session/tool-results/ID"
        )
    if scope == "session" and name.startswith(_ARTIFACTS):
        return MemoResource("session", name.removeprefix(_ARTIFACTS), is_artifact=True)
    return MemoResource("session" if scope == "session" else "user", name)


async def list_resources(session: AgentSession, cursor: str | None) -> ListResourcesResult:
    """Return one page: documents of the session, of the user, then tool results, each by name."""
    scopes: tuple[Scope, ...] = ("session", "user")
    found = [_document(scope, item) for scope in scopes for item in await session.list_memo(scope)]
    found += [_artifact(item) for item in await session.list_artifacts()]
    start = _start(cursor)
    more = str(start + PAGE) if len(found) > start + PAGE else None
    return ListResourcesResult(resources=found[start : start + PAGE], next_cursor=more)


def _document(scope: Scope, item: DocumentInfo) -> Resource:
    return Resource(
        uri=MemoResource(scope, item.name).uri,
        name=item.name,
        title=f"{item.name} of the {scope}",
        description=item.summary or None,
        mime_type=_MARKDOWN,
        size=item.size,
        annotations=Annotations(last_modified=item.updated_at.isoformat()),
    )


def _artifact(item: Artifact) -> Resource:
    return Resource(
        uri=MemoResource("session", item.id, is_artifact=True).uri,
        name=item.id,
        title=f"Tool result {item.id}",
        mime_type=_PLAIN,
        size=item.size,
    )


def list_templates() -> ListResourceTemplatesResult:
    return ListResourceTemplatesResult(
        resource_templates=[
            ResourceTemplate(
                uri_template="memo://session/{+name}",
                name="session-document",
                title="Document of the session",
                description="Memory of this session, such as NOTES.md and TODO.md.",
                mime_type=_MARKDOWN,
            ),
            ResourceTemplate(
                uri_template="memo://user/{+name}",
                name="user-document",
                title="Document of the user",
                description="Memory that all sessions of the user share, such as USER.md.",
                mime_type=_MARKDOWN,
            ),
            ResourceTemplate(
                uri_template="memo://session/tool-results/{id}",
                name="tool-result",
                title="Stored tool result",
                description="The whole text of a tool result that was too long for the conversation.",
                mime_type=_PLAIN,
            ),
        ]
    )


async def read_resource(session: AgentSession, uri: str) -> ReadResourceResult:
    try:
        place = parse_uri(uri)
        if place.is_artifact:
            text = await session.read_artifact(place.name)
        else:
            text = (await session.read_memo(place.name, place.scope)).text
    except (MemoError, NotFound, InvalidRequest) as error:
        raise MCPError(INVALID_PARAMS, str(error), {"uri": uri[:1000]}) from error
    if len(text) > MAX_TEXT_CHARS:
        raise MCPError(
            INVALID_PARAMS,
            f"cannot return this resource: it has {len(text)} characters, and at most {MAX_TEXT_CHARS} are returned; "
            "read it in parts with the Read tool, below /workspace/memo",
            {"uri": uri[:1000]},
        )
    mime_type = _PLAIN if place.is_artifact else _MARKDOWN
    return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type=mime_type, text=text)])


def _start(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= 9):
        raise MCPError(INVALID_PARAMS, "cannot use this cursor: it must be the nextCursor of an earlier page")
    return int(cursor)
