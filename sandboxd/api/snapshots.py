"""Snapshots of a session's workspace, and forks of the session: take, list, remove, fork."""

from __future__ import annotations

import anyio
from starlette.requests import Request
from starlette.responses import Response

from sandboxd.api.answers import json_answer
from sandboxd.api.memory import request_of
from sandboxd.api.once import BEGUN
from sandboxd.api.problems import problem_of
from sandboxd.api.requests import MAX_JSON_BYTES, read_json, read_optional_json, session_ref, wants_events
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.api.streams import EVENTS_HEAD, Source, Streamed, sse
from sandboxd.errors import SandboxdError
from sandboxd.models.fork import ForkRequest, ForkView
from sandboxd.models.snapshot import SnapshotList, SnapshotProgress, SnapshotRequest, SnapshotView
from sandboxd.sandboxes.snapshots import SnapshotJob

_PROGRESS_S = 0.2


async def take_snapshot(services: Services, request: Request) -> Response:
    asked = await read_optional_json(request, SnapshotRequest)
    request.scope[BEGUN] = True
    named = request_of(request, "snapshot", asked.model_dump_json())
    job = await services.manager.take_snapshot(session_ref(request), asked.name, named)
    if wants_events(request):
        return Streamed(_events(job), services.watch)
    return json_answer(await job.wait(), 201)


async def _events(job: SnapshotJob) -> Source:
    yield EVENTS_HEAD
    while not job.done.is_set():
        progress = job.progress
        yield sse("progress", SnapshotProgress(copied_bytes=progress.copied_bytes, total_bytes=progress.total_bytes))
        with anyio.move_on_after(_PROGRESS_S):
            await job.done.wait()
    try:
        yield sse("snapshot", await job.wait())
    except SandboxdError as error:
        yield sse("error", problem_of(error))


async def list_snapshots(services: Services, request: Request) -> Response:
    return json_answer(SnapshotList(items=services.manager.snapshots.of_session(session_ref(request))))


async def get_snapshot(services: Services, request: Request) -> Response:
    return json_answer(services.manager.snapshots.get(session_ref(request), _snapshot_id(request)))


async def remove_snapshot(services: Services, request: Request) -> Response:
    request.scope[BEGUN] = True
    await services.manager.snapshots.remove(session_ref(request), _snapshot_id(request))
    return Response(status_code=204)


async def fork_session(services: Services, request: Request) -> Response:
    asked = await read_json(request, ForkRequest)
    request.scope[BEGUN] = True
    named = request_of(request, "fork", asked.model_dump_json())
    return json_answer(await services.manager.fork(session_ref(request), asked, named), 201)


def _snapshot_id(request: Request) -> str:
    found: str = request.scope["path_params"]["snapshot"]
    return found


_SNAPSHOTS = f"{SESSION}/snapshots"

ENDPOINTS = (
    Endpoint(
        "POST",
        _SNAPSHOTS,
        take_snapshot,
        "snapshot",
        Access.WRITE,
        "Copy the session's workspace as it is now. A running sandbox goes on; what it writes meanwhile waits. With "
        "`Accept: text/event-stream`: events `progress` (`{copied_bytes, total_bytes}`), then `snapshot` (the answer) "
        "or `error` (a problem)",
        body_limit=MAX_JSON_BYTES,
        body=SnapshotRequest,
        answers={201: SnapshotView},
    ),
    Endpoint(
        "GET",
        _SNAPSHOTS,
        list_snapshots,
        "snapshot",
        Access.READ,
        "List the session's snapshots, oldest first, whether it still has a sandbox or not",
        answers={200: SnapshotList},
    ),
    Endpoint(
        "GET",
        f"{_SNAPSHOTS}/{{snapshot}}",
        get_snapshot,
        "snapshot",
        Access.READ,
        "Return a snapshot",
        answers={200: SnapshotView},
    ),
    Endpoint(
        "DELETE",
        f"{_SNAPSHOTS}/{{snapshot}}",
        remove_snapshot,
        "snapshot",
        Access.WRITE,
        "Remove a snapshot. Sandboxes that were made from it are not affected",
        answers={204: None},
    ),
    Endpoint(
        "POST",
        f"{SESSION}/fork",
        fork_session,
        "fork",
        Access.WRITE,
        "Make new sessions as copies of this one: the files of its sandbox and, unless `memory` is `none`, its "
        "messages, documents and artifacts. All of them are made, or none",
        body_limit=MAX_JSON_BYTES,
        body=ForkRequest,
        answers={201: ForkView},
    ),
)
