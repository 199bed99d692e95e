"""The HTTP side of an AgentApp: an ASGI app with /health, /ready, /chat, /stream and the inspector's read routes.

It parses, calls and renders; the app decides and stores. It has no authentication of its own: it belongs behind the
program's own, or on a loopback address. The inspector shows every session of every tenant, so it must be asked for.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from memo.errors import (
    Absent,
    InvalidContent,
    InvalidKey,
    MemoError,
    SessionTaken,
    TooLarge,
    Unsupported,
)
from memo.inspection import InspectorDataSource
from memo.profiles import Event, ReadinessCheck
from memo.sessions import Session

_log = logging.getLogger("memo.app")

MAX_BODY_BYTES = 4 * 1024 * 1024
_STATUS = {
    InvalidKey.code: 400,
    InvalidContent.code: 400,
    TooLarge.code: 413,
    Absent.code: 404,
    SessionTaken.code: 409,
    Unsupported.code: 501,
}
_FIELDS = {
    "message": ("message",),
    "tenant": ("tenantId", "tenant_id", "tenant"),
    "user": ("userId", "user_id", "user"),
    "profile": ("agentId", "agent_id", "profile"),
    "session": ("sessionId", "session_id", "session"),
}


class AgentHost(Protocol):
    """The part of an AgentApp that the routes use."""

    def run_turn(
        self, message: str, *, tenant: str, user: str, profile: str | None = None, session: str | None = None
    ) -> AsyncGenerator[Event]: ...

    async def check_store(self) -> None: ...


def make_asgi(host: AgentHost, inspector: InspectorDataSource | None, checks: Sequence[ReadinessCheck]) -> Starlette:
    routes = [
        Route("/health", _health, methods=["GET"]),
        Route("/ready", _Ready(host, checks), methods=["GET"]),
        Route("/chat", _Chat(host), methods=["POST"]),
        Route("/stream", _TurnStream(host), methods=["POST"]),
    ]
    if inspector is not None:
        routes += _inspector_routes(inspector)
    return Starlette(routes=routes, exception_handlers={MemoError: _answer_error, Exception: _answer_error})


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


class _Handler(ABC):
    """An endpoint with state, as Starlette takes a class instance: an ASGI app."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        response = await self.answer(Request(scope, receive, send))
        await response(scope, receive, send)

    @abstractmethod
    async def answer(self, request: Request) -> Response: ...


class _Ready(_Handler):
    def __init__(self, host: AgentHost, checks: Sequence[ReadinessCheck]) -> None:
        self._checks = {"store": host.check_store, **{f"check {n}": check for n, check in enumerate(checks, start=1)}}

    async def answer(self, request: Request) -> Response:
        results = [await _checked(name, check) for name, check in self._checks.items()]
        is_ready = all(result["status"] == "ok" for result in results)
        return JSONResponse(
            {"status": "ready" if is_ready else "not ready", "checks": results}, 200 if is_ready else 503
        )


async def _checked(name: str, check: ReadinessCheck) -> dict[str, str]:
    try:
        found = await check()
    except Exception as error:  # noqa: BLE001  # a check may raise anything; that is its answer
        return {"name": name, "status": "fail", "detail": _reason(error)}
    if isinstance(found, Mapping):
        return {"name": str(found.get("name", name)), "status": str(found.get("status", "ok"))}
    return {"name": name, "status": "fail" if found is False else "ok"}


class _Chat(_Handler):
    def __init__(self, host: AgentHost) -> None:
        self._host = host

    async def answer(self, request: Request) -> Response:
        last: Event = {}
        async with aclosing(self._host.run_turn(**await _asked(request))) as events:
            async for event in events:
                last = event
        if last.get("type") == "error":
            return _failed(last)
        names = ("sessionId", "text", "usage", "stopReason", "compacted")
        return JSONResponse({name: last[name] for name in names})


class _TurnStream(_Handler):
    def __init__(self, host: AgentHost) -> None:
        self._host = host

    async def answer(self, request: Request) -> Response:
        events = self._host.run_turn(**await _asked(request))
        first = await anext(events)  # the session, so that its id can go into the head
        if first["type"] == "error":
            return _failed(first)
        headers = {"x-session-id": first["sessionId"], "cache-control": "no-store"}
        return StreamingResponse(_server_sent(first, events), media_type="text/event-stream", headers=headers)


def _failed(event: Event) -> Response:
    return JSONResponse({"error": event["error"]["message"]}, _status(event["error"]["code"]))


async def _server_sent(first: Event, events: AsyncGenerator[Event]) -> AsyncIterator[str]:
    async with aclosing(events):
        yield _frame(first)
        async for event in events:
            yield _frame(event)


def _frame(event: Event) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False, default=_plain)}\n\n"


async def _asked(request: Request) -> dict[str, Any]:
    """Return the arguments of a turn, from a body in either spelling."""
    body = b""
    async for block in request.stream():
        body += block
        if len(body) > MAX_BODY_BYTES:
            raise TooLarge(f"cannot read this request: its body is larger than {MAX_BODY_BYTES} bytes")
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidContent("cannot read this request: its body is not JSON") from None
    if not isinstance(given, dict):
        raise InvalidContent("cannot read this request: its body is not a JSON object")
    asked: dict[str, Any] = {}
    for name, spellings in _FIELDS.items():
        value = next((given[s] for s in spellings if given.get(s) is not None), None)
        if value is not None and not isinstance(value, str):
            raise InvalidContent(f"cannot read this request: {spellings[0]} must be text")
        asked[name] = value
    missing = [_FIELDS[name][0] for name in ("message", "tenant", "user") if not asked[name]]
    if missing:
        raise InvalidContent(f"cannot answer: the request lacks {', '.join(missing)}")
    return asked


async def _answer_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, MemoError):
        _log.error("cannot answer %s: %s", request.url.path, type(error).__name__)
    return JSONResponse({"error": _reason(error)}, _status(error.code if isinstance(error, MemoError) else ""))


def _status(code: str) -> int:
    return 503 if code.startswith("store.") else _STATUS.get(code, 500)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, MemoError) else type(error).__name__  # another text may hold memory


# The inspector


def _inspector_routes(source: InspectorDataSource) -> list[Route]:
    api, session = "/__inspector/api", "/tenants/{tenant}/sessions/{session}"

    async def sessions(request: Request) -> Response:
        found = [Session.parse(one) for one in await source.list_sessions()]
        tenant, user = request.query_params.get("tenant"), request.query_params.get("user")
        chosen = [one for one in found if tenant in (None, one.tenant) and user in (None, one.user)]
        return _json({"items": chosen})

    def load(name: str) -> Callable[[Request], Awaitable[Any]]:
        async def found(request: Request) -> Any:
            method = getattr(source, name, None)
            if method is None:
                raise Unsupported(f"cannot inspect this: the data source has no {name}")
            return await method(*_place(request))

        return found

    def items(name: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return _json({"items": await load(name)(request)})

        return answer

    async def state(request: Request) -> Response:
        return _json(await load("load_orchestration_state")(request))

    def get(path: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
        return Route(path, answer, methods=["GET"])

    return [
        get(f"{api}/sessions", sessions),
        get(f"{api}{session}/messages", items("load_messages")),
        get(f"{api}{session}/trace", items("load_trace_envelopes")),
        get(f"{api}{session}/orchestration/state", state),
        get(f"{api}{session}/orchestration/events", items("load_orchestration_events")),
    ]


def _place(request: Request) -> tuple[str, str]:
    return request.path_params["tenant"], request.path_params["session"]


def _json(value: Any) -> Response:
    text = json.dumps(value, ensure_ascii=False, default=_plain)
    return Response(text, media_type="application/json", headers={"cache-control": "no-store"})


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"cannot send a {type(value).__name__} as JSON")
