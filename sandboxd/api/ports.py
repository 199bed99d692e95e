"""The ports of a sandbox: what listens inside, requests to it, and preview URLs for browsers."""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from memo.ids import SessionRef
from sandboxd.api.answers import json_answer
from sandboxd.api.contracts import Manager
from sandboxd.api.port_headers import INNER_AUTHORIZATION, PortPlace
from sandboxd.api.port_proxy import PortAnswer, PortTarget
from sandboxd.api.previews import Visit
from sandboxd.api.request_path import inner_path
from sandboxd.api.requests import header, read_optional_json, session_ref
from sandboxd.api.routes import ANY, SESSION, Access, Endpoint, Services
from sandboxd.errors import InvalidRequest, PreviewUnsupported, SandboxNotFound
from sandboxd.metrics import Metrics
from sandboxd.models.network import PortList, Preview, PreviewRequest
from sandboxd.network.previews import PreviewGrant, Previews

_PORT = f"{SESSION}/ports/{{port}}"
_KIND = "port"


def read_port(request: Request) -> int:
    """Return the port in the path; raise InvalidRequest if it is not one."""
    text: str = request.scope["path_params"]["port"]
    if re.fullmatch(r"[1-9][0-9]{0,4}", text) is None or int(text) > 65_535:
        raise InvalidRequest("cannot use this port: it must be a number from 1 to 65535")
    return int(text)


async def list_ports(services: Services, request: Request) -> Response:
    with await services.manager.call(session_ref(request)) as runner, services.watch.guard(request.receive):
        return json_answer(PortList(items=await runner.list_ports()))


async def proxy(services: Services, request: Request) -> Response:
    scope = request.scope
    raw: bytes = scope["raw_path"]
    path = inner_path(raw)
    prefix = raw.removesuffix(path) if raw.endswith(path) else raw
    place = PortPlace(
        read_port(request), prefix.decode("latin-1"), header(request, b"host") or "localhost", scope["scheme"]
    )
    return PortAnswer(services.manager, PortTarget(session_ref(request), place, path))


async def make_preview(services: Services, request: Request) -> Response:
    ref, port = session_ref(request), read_port(request)
    body = await read_optional_json(request, PreviewRequest)
    if services.previews is None:
        raise PreviewUnsupported(
            "cannot make a preview URL: the daemon shows previews on its TCP listener only; start it with --tcp and "
            "--token-file, and if that is not a loopback address, set network.preview_host to a name whose "
            "subdomains lead there"
        )
    grant = await services.previews.grant(ref, _identity(services.manager, ref), port, body.ttl_s)
    return json_answer(Preview(url=services.previews.url(grant), expires_at=grant.expires_at), 201)


def _identity(manager: Manager, ref: SessionRef) -> str:
    """Return what tells a sandbox from a later one of the same session."""
    return manager.get(ref).created_at.isoformat()


def show_preview(manager: Manager, previews: Previews, visit: Visit, scope: Scope) -> PortAnswer:
    """Return the answer to a request on a preview's own host."""
    scheme = previews.address.scheme
    place = PortPlace(visit.grant.port, "", visit.host, scheme)
    return PortAnswer(manager, PortTarget(visit.grant.ref, place, scope["raw_path"] or b"/"))


class PreviewDesk:
    """Knows whether a preview's sandbox still exists, and counts visits."""

    def __init__(self, manager: Manager, previews: Previews, metrics: Metrics) -> None:
        self._manager = manager
        self._previews = previews
        self._metrics = metrics

    def clock(self) -> float:
        return self._previews.clock()

    async def check(self, grant: PreviewGrant) -> None:
        try:
            is_same = _identity(self._manager, grant.ref) == grant.sandbox
        except SandboxNotFound:
            is_same = False
        if not is_same:
            await self._previews.forget(grant)
            raise SandboxNotFound("cannot show this preview: its sandbox was removed")

    def record(self, outcome: str, seconds: float) -> None:
        self._metrics.record("preview", outcome, seconds)


_PROXIED = (
    "The request goes to the server that listens on this port of a loopback address in the sandbox, and its answer "
    "comes back, both as they arrive; a WebSocket is passed through. Path and query are passed on byte for byte, but "
    "the path must not contain `.` and `..` segments. The server sees `Host: localhost:PORT`, `X-Forwarded-Host`, "
    "`X-Forwarded-Proto` and `X-Forwarded-Prefix`. Authorization is the daemon's: to send one to the server, use "
    f"`{INNER_AUTHORIZATION.decode().title()}`. Redirects to the server and its cookies are changed to stay below this "
    "path. `POST …/ports/PORT/preview` is the daemon's own. An Idempotency-Key is passed on and has no effect here."
)

ENDPOINTS = (
    Endpoint(
        "GET",
        f"{SESSION}/ports",
        list_ports,
        _KIND,
        Access.READ,
        "List the ports that processes in the sandbox listen on",
        answers={200: PortList},
    ),
    Endpoint(
        "POST",
        f"{_PORT}/preview",
        make_preview,
        _KIND,
        Access.WRITE,
        "Make a URL that shows a port in a browser, without a token, until it expires",
        body=PreviewRequest,
        answers={201: Preview},
        repeatable=False,
    ),
    Endpoint(
        ANY,
        _PORT,
        proxy,
        _KIND,
        Access.PROXY,
        "Send a request for / to a server in the sandbox",
        answers={200: None, 101: None},
        description=_PROXIED,
        operation_id="proxy_root",
    ),
    Endpoint(
        ANY,
        f"{_PORT}/{{rest:rest}}",
        proxy,
        _KIND,
        Access.PROXY,
        "Send a request to a server in the sandbox",
        answers={200: None, 101: None},
        description=_PROXIED,
    ),
)
