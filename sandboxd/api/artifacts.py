"""Artifacts: list, read and write the full text of a session's tool results."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from memo.documents import ArtifactKey
from memo.errors import Absent
from memo.ids import ToolCallId
from sandboxd.api.memory import (
    AUTHOR_HEADERS,
    MAX_TEXT_BYTES,
    ask_store,
    author_of,
    foreign_list,
    memory_of,
    read_text,
    require_session,
    text_answer,
    unusable,
    written,
)
from sandboxd.api.once import BEGUN
from sandboxd.api.requests import session_ref
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.models.artifact import Artifact, ArtifactList
from sandboxd.models.document import QueuedWrite, WrittenRevision

TEXT = "text/plain"


def _key(request: Request) -> ArtifactKey:
    return ArtifactKey(session_ref(request), ToolCallId(request.scope["path_params"]["artifact"]))


async def list_artifacts(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    is_rich = memory_of(services).capabilities.rich_artifacts
    found = await ask_store(services, "list_artifacts" if is_rich else "list_tool_result_artifact_ids", ref)
    if not found:
        await require_session(services, ref)
    describe = Artifact.of if is_rich else _only_id
    return await foreign_list(request, "a list of artifacts", lambda: map(describe, found))


async def read_artifact(services: Services, request: Request) -> Response:
    key = _key(request)
    text = await ask_store(services, "read_tool_result_artifact", key.session, key.tool_call)
    if text is None:
        raise Absent(f"cannot find the artifact {key.tool_call}: it does not exist")
    if not isinstance(text, str):
        raise unusable("an artifact is not text")
    try:
        return text_answer(request, text, TEXT)
    except UnicodeEncodeError:
        raise unusable("an artifact is not valid UTF-8") from None


async def write_artifact(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    key = _key(request)
    text = await read_text(request, "artifact", services.store_limits.artifact_bytes)
    author = author_of(request, "artifact", text, key.session.session)
    request.scope[BEGUN] = True
    return written(await memory.write_artifact(key, text, author=author))


def _only_id(artifact: str) -> Artifact:
    return Artifact(id=ToolCallId(artifact))


_ARTIFACTS = f"{SESSION}/artifacts"
_ARTIFACT = f"{_ARTIFACTS}/{{artifact}}"

ENDPOINTS = (
    Endpoint(
        "GET",
        _ARTIFACTS,
        list_artifacts,
        "artifact",
        Access.READ,
        "List the artifacts of the session",
        answers={200: ArtifactList},
    ),
    Endpoint(
        "GET",
        _ARTIFACT,
        read_artifact,
        "artifact",
        Access.READ,
        "Return the full text of a tool result; 404 `memo.absent` if it was never written",
        answers={200: TEXT},
    ),
    Endpoint(
        "PUT",
        _ARTIFACT,
        write_artifact,
        "artifact",
        Access.WRITE,
        "Store the full text of a tool result; storing the same text again changes nothing",
        body_limit=MAX_TEXT_BYTES,
        body=TEXT,
        answers={200: WrittenRevision, 202: QueuedWrite},
        headers=AUTHOR_HEADERS,
    ),
)
