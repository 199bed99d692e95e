"""What a route is: a declared value, served with as little as possible between the socket and its function.

Starlette matches the path; the request then goes straight to `run(services, request)`. Access is part of the
declaration: a route that reads never takes an Idempotency-Key, every route that writes does, and one that opens a
WebSocket or passes requests on to a server in a sandbox, which may write, does not.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from memo.errors import MemoError
from memo.limits import StoreLimits
from sandboxd.api.contracts import Manager, Memory
from sandboxd.api.feed import EventFeed
from sandboxd.api.once import answer_once
from sandboxd.api.refusals import ClientLeft, MethodNotAllowed
from sandboxd.api.upgraded import UPGRADE
from sandboxd.api.watch import DisconnectWatch
from sandboxd.consolidation.auto_compactor import AutoCompactor
from sandboxd.consolidation.service import ConsolidationService
from sandboxd.errors import InternalError, InvalidRequest, SandboxdError, host_error, is_host_fault
from sandboxd.idempotency import IdempotencyStore
from sandboxd.inspector.inspector import Inspector
from sandboxd.inspector.page_files import PageFiles
from sandboxd.metrics import Metrics
from sandboxd.models.health import Readiness
from sandboxd.network.previews import Previews
from sandboxd.tools import Toolbox

SESSION = "/v1/tenants/{tenant}/sessions/{session}"
USER = "/v1/tenants/{tenant}/users/{user}"


class _AnyText(Convertor[str]):
    """The rest of a path, whatever it contains: Starlette's own `path` stops at a line break."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("rest", _AnyText())


class Access(Enum):
    READ = "read"
    WRITE = "write"
    SOCKET = "socket"
    PROXY = "proxy"
    """Requests and WebSockets alike, which a server in the sandbox answers."""


ANY = "ANY"
"""The method of an endpoint that takes every method."""
_USUAL_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


@dataclass(frozen=True, slots=True)
class Services:
    """Everything a route may use."""

    manager: Manager
    toolbox: Toolbox
    idempotency: IdempotencyStore
    metrics: Metrics
    readiness: Callable[[], Awaitable[Readiness]]
    watch: DisconnectWatch
    feed: EventFeed
    openapi: Callable[[], dict[str, Any]]
    """Returns the OpenAPI document."""
    version: str
    inspector: Inspector
    page: PageFiles
    memory: Memory | None = None
    store_limits: StoreLimits = field(default_factory=StoreLimits)
    consolidation: ConsolidationService | None = None
    compactor: AutoCompactor | None = None
    """None if conversations are not compacted after a turn."""
    previews: Previews | None = None
    """None if this daemon serves no previews."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One verb on one path. `repeatable` means that running it twice has the effect of running it once.

    If that depends on the store, `repeatable` is a function, which is called once.
    """

    method: str
    path: str
    """With its parameters in braces, as OpenAPI describes it."""
    run: Callable[[Services, Request], Awaitable[Response]]
    kind: str
    access: Access
    summary: str
    body_limit: int = 0
    body: type[BaseModel] | str | None = None
    other_body: str | None = None
    """Another media type that its body may have."""
    query: type[BaseModel] | None = None
    answers: Mapping[int, type[BaseModel] | str | None] = field(default_factory=dict)
    other_answers: tuple[type[BaseModel], ...] = ()
    """The JSON answers, with status 200, that the query can request instead."""
    repeatable: bool | Callable[[Services], bool] = True
    judges_repeats: bool = False
    """Whether the route itself decides, from the request, whether an interrupted request may run again."""
    headers: tuple[str, ...] = ()
    """Headers it accepts in addition to Idempotency-Key."""
    messages: Mapping[Literal["client", "server"], tuple[type[BaseModel], ...]] = field(default_factory=dict)
    """The JSON messages of its WebSocket, by sender."""
    description: str = ""
    """What its summary does not say."""
    operation_id: str = ""
    """Its name in the OpenAPI document if not its function's name: two routes may share a function."""
    deep_parameter: str = ""
    """The parameter of its path whose value may contain slashes."""

    @property
    def route(self) -> str:
        """The path as Starlette matches it."""
        return self.path.replace(f"{{{self.deep_parameter}}}", f"{{{self.deep_parameter}:path}}")

    @property
    def operations(self) -> dict[str, str]:
        """The methods that the OpenAPI document lists, each with the name of its operation."""
        name = self.operation_id or self.run.__name__
        if self.method != ANY:
            return {self.method: name}
        return {method: f"{name}_{method.lower()}" for method in _USUAL_METHODS}

    @property
    def public_path(self) -> str:
        """The path without the types of its parameters."""
        return re.sub(r"{(\w+):\w+}", r"{\1}", self.path)


class EndpointRoute(Route):
    """The Starlette route of an endpoint. A wrong method raises, so that the boundary answers it like any error."""

    def __init__(self, endpoint: Endpoint, services: Services) -> None:
        super().__init__(endpoint.route, endpoint.run, methods=[endpoint.method])
        self._method = endpoint.method
        self._takes_sockets = endpoint.access in (Access.SOCKET, Access.PROXY)
        self.methods = None if endpoint.method == ANY else {endpoint.method}  # Starlette adds HEAD to GET
        self.app = _serve(endpoint, services)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._method not in (scope["method"], ANY):
            raise MethodNotAllowed(self._method)
        if UPGRADE in scope and not self._takes_sockets:
            raise InvalidRequest("cannot open a WebSocket here: this route answers requests; leave out the upgrade")
        await self.app(scope, receive, send)


def _serve(endpoint: Endpoint, services: Services) -> ASGIApp:
    run, kind, record = endpoint.run, endpoint.kind, services.metrics.record
    takes_keys = endpoint.access is Access.WRITE
    repeatable = endpoint.repeatable if isinstance(endpoint.repeatable, bool) else endpoint.repeatable(services)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        response = await run(services, Request(scope, receive, send))
        await response(scope, receive, send)

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        outcome = "ok"
        try:
            if takes_keys and any(name == b"idempotency-key" for name, _ in scope["headers"]):
                await answer_once(
                    answer,
                    services.idempotency,
                    scope,
                    receive,
                    send,
                    body_limit=endpoint.body_limit,
                    repeatable=repeatable,
                    judges_repeats=endpoint.judges_repeats,
                )
            else:
                await answer(scope, receive, send)
        except (SandboxdError, MemoError) as error:
            outcome = error.code
            raise
        except ClientLeft:
            outcome = "abandoned"
            raise
        except OSError as error:
            outcome = host_error("answer", error).code if is_host_fault(error) else InternalError.code
            if is_host_fault(error):
                raise host_error("answer", error) from error
            raise
        except Exception:
            outcome = "internal.error"
            raise
        finally:
            record(kind, outcome, time.perf_counter() - started)

    return serve
