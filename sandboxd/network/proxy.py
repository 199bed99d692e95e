"""One connection of a sandbox through the daemon: read what it asks for, decide, connect, carry bytes, and report.

A tunnel carries only TLS whose server name is the host that was checked; the daemon reads what is inside it only for
the hosts of credentials. Whatever the sandbox sends, it is answered or cut, with a reason in the record.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import anyio

from sandboxd.errors import InvalidRequest, SandboxError
from sandboxd.models.network import Decision
from sandboxd.network.access import EgressAccess
from sandboxd.network.addresses import Resolver, Unreachable, choose_addresses
from sandboxd.network.audit import AuditDraft
from sandboxd.network.byte_stream import ByteStream, SandboxStream
from sandboxd.network.certificates import SandboxAuthority
from sandboxd.network.client_hello import HelloReader, HelloState
from sandboxd.network.credentials import Credential, CredentialStore
from sandboxd.network.host_names import EgressTarget, IPAddress, join_host_port, parse_target
from sandboxd.network.http_connection import STREAM_ERRORS, ClientGone, HttpClientConnection
from sandboxd.network.http_exchange import HttpExchange, forward_request, serve_terminated
from sandboxd.network.http_head import (
    HttpRefusal,
    OutgoingRequest,
    RequestHead,
    host_header_matches,
    parse_absolute,
)
from sandboxd.network.meter import Meter, SandboxEnd
from sandboxd.network.origin import connect_to
from sandboxd.network.relay import relay
from sandboxd.network.rules import Denied
from sandboxd.network.tls_stream import wrap_client, wrap_server
from sandboxd.network_settings import NetworkOptions

Account = Callable[[AuditDraft, Decision, str | None], None]
"""Take the record of a connection or request, with the decision and its reason."""
HTTP_PORT = 80


@dataclass(frozen=True, slots=True)
class Gate:
    """What the connections of one sandbox are checked against and served with."""

    access: EgressAccess
    options: NetworkOptions
    resolver: Resolver
    credentials: CredentialStore
    authority: SandboxAuthority
    trusted: ssl.SSLContext
    """What the daemon trusts when it connects to the host of a credential."""
    meter: Meter
    logins: Mapping[tuple[str, int], Credential]
    """The logins of package sources, which the sandbox uses without naming them."""
    problem: str | None = None
    """Why nothing is allowed, if that is so."""

    def credential_for(self, target: EgressTarget) -> Credential | None:
        named = self.credentials.find(self.access.credentials, target.host, target.port)
        return named or self.logins.get((target.host, target.port))


class ProxyConnection:
    """Owns a connection until it ends. `account` gets a record of it, or of each request in it."""

    def __init__(self, gate: Gate, stream: SandboxStream, account: Account) -> None:
        self._gate = gate
        self._stream = stream
        self._account = account
        self._draft = AuditDraft()
        self._scope = anyio.CancelScope()
        self._end = SandboxEnd(stream, gate.meter, self._draft, self._moved)
        self._client = HttpClientConnection(self._end)
        self._cut: str | None = None
        self._target: EgressTarget | None = None
        self._is_reported = False

    def is_allowed_by(self, access: EgressAccess) -> bool:
        """Return whether this connection may go on under other rules."""
        if self._target is None:
            return True  # not decided yet
        rule = access.policy.match(self._target)
        is_same = rule is not None and rule == self._gate.access.policy.match(self._target)
        return is_same and access.credentials == self._gate.access.credentials

    def cut(self, reason: str) -> None:
        """End the connection now."""
        self._cut = reason
        self._scope.cancel()

    async def run(self) -> None:
        """Serve the connection to its end. Raise nothing that the sandbox or a host can cause."""
        try:
            with self._scope:
                await self._gate.meter.begin()
                self._scope.deadline = anyio.current_time() + self._gate.options.head_timeout_s
                await self._answer()
                if self._end.has_ended:  # a slow reader gets the end of its answer too
                    await self._stream.wait_delivered()
        except ClientGone as error:
            self._conclude("failed", str(error))
        except ssl.SSLError as error:
            self._conclude("failed", f"TLS failed: {error.reason or error.strerror or 'the handshake was cut'}")
        except STREAM_ERRORS as error:
            self._conclude("failed", f"the connection broke: {error or type(error).__name__}")
        if self._scope.cancelled_caught:
            silence = "its request did not arrive in time" if self._target is None else "nothing moved for too long"
            self._conclude("failed", self._cut or silence)

    async def _answer(self) -> None:
        try:
            head = await self._client.read_request()
            if head is not None:
                self._scope.deadline = anyio.current_time() + self._gate.options.idle_timeout_s
                await (self._tunnel(head) if head.method == "CONNECT" else self._forward(head))
        except HttpRefusal as refusal:
            await self._refuse(refusal)
        except InvalidRequest as error:
            await self._refuse(HttpRefusal(400, str(error)))
        except Denied as denied:
            await self._refuse(HttpRefusal(403, self._advise(denied.reason)), denied.reason)
        except Unreachable as unreachable:
            await self._refuse(HttpRefusal(502, unreachable.reason))

    async def _tunnel(self, head: RequestHead) -> None:
        self._draft.host = head.target  # until it is known to be a host
        target = parse_target(head.target)
        addresses = await self._admit(target)
        credential = self._gate.credential_for(target)
        if credential is not None:
            await self._client.accept_tunnel()
            self._end.unread(await self._read_hello(target))
            await self._serve_with(credential, target, addresses)
            return
        async with await connect_to(addresses, target.port, self._gate.options.connect_timeout_s) as origin:
            await self._client.accept_tunnel()
            await origin.send(await self._read_hello(target))
            with suppress(SandboxError):  # a client may close its connection at any time
                await relay(self._end, origin)
        self._conclude("allowed")

    async def _forward(self, head: RequestHead) -> None:
        """Carry one plain request. Its connection ends with it, so that the next one is decided anew."""
        self._draft.method = head.method
        absolute = parse_absolute(head.target)
        self._draft.path = absolute.path.partition("?")[0]
        target = parse_target(join_host_port(absolute.host, absolute.port))
        if absolute.scheme != "http":
            raise HttpRefusal(400, f"cannot forward the request: open a tunnel with CONNECT {target} for https")
        addresses = await self._admit(target)
        if not host_header_matches(head.headers, target.host, target.port, HTTP_PORT):
            raise Denied(f"the Host header must name {target.host}, as the URL does")
        credential = self._gate.credential_for(target)
        if credential is not None and credential.needs_tls:
            raise Denied(f"{target} has a credential, so it is reached with https only")
        if credential is None:
            outgoing = OutgoingRequest(absolute.path, head.headers)
        else:
            outgoing = await credential.authorise(replace(head, target=absolute.path))
        async with await connect_to(addresses, target.port, self._gate.options.connect_timeout_s) as origin:
            await forward_request(self._client, head, outgoing, origin, self._report_exchange)

    async def _admit(self, target: EgressTarget) -> tuple[IPAddress, ...]:
        """Return the addresses to connect to; raise Denied or Unreachable if there are none."""
        gate = self._gate
        self._target = target
        self._draft.host, self._draft.port = target.host, target.port
        if gate.problem is not None:
            raise Denied(gate.problem)
        gate.meter.check()
        self._end.is_limited = True
        rule = gate.access.policy.match(target)
        if rule is None:
            raise Denied(f"{target} is not among the hosts that this sandbox may reach")
        self._draft.rule = rule.text
        try:
            with anyio.fail_after(gate.options.connect_timeout_s):
                return await choose_addresses(gate.resolver, target, rule)
        except TimeoutError:
            raise Unreachable(f"cannot find the host {target.host}: no name server answered in time") from None

    async def _read_hello(self, target: EgressTarget) -> bytes:
        """Return the first bytes of the tunnel once they are a TLS greeting for the target; raise Denied otherwise."""
        reader = HelloReader()
        data = self._client.rest
        with anyio.move_on_after(self._gate.options.head_timeout_s):
            while reader.state is HelloState.NEEDS_MORE:
                if not data and not (data := await self._end.receive()):
                    raise ClientGone
                reader.feed(data)
                data = b""
        if reader.state is not HelloState.COMPLETE:
            raise Denied("a tunnel carries TLS only, and the first bytes are not a TLS greeting")
        expected = target.host if target.address is None else None
        if reader.server_name != expected:
            asked = "no server name" if reader.server_name is None else f"the server name {reader.server_name}"
            raise Denied(f"the TLS greeting asks for {asked}, not for {target.host}")
        return reader.data

    async def _serve_with(self, credential: Credential, target: EgressTarget, addresses: Sequence[IPAddress]) -> None:
        """Serve the requests inside a tunnel, with the credential added to each."""
        gate = self._gate
        self._draft.credential = credential.name

        @asynccontextmanager
        async def open_origin() -> AsyncGenerator[ByteStream]:
            try:
                connection = await connect_to(addresses, target.port, gate.options.connect_timeout_s)
            except Unreachable as unreachable:
                raise HttpRefusal(502, unreachable.reason) from None
            async with connection as origin:
                with anyio.fail_after(gate.options.connect_timeout_s):
                    secured = await wrap_client(origin, target.host, gate.trusted)
                yield secured

        async def check(head: RequestHead) -> OutgoingRequest:
            await gate.meter.begin()
            return await credential.authorise(head)

        context = await gate.authority.context_for(target.host)
        with anyio.fail_after(gate.options.head_timeout_s):
            secured = await wrap_server(self._end, context)
        await serve_terminated(
            secured,
            host=target.host,
            port=target.port,
            check=check,
            open_origin=open_origin,
            report=self._report_exchange,
        )

    async def _refuse(self, refusal: HttpRefusal, reason: str | None = None) -> None:
        self._conclude(refusal.decision, reason or refusal.text)
        self._end.is_limited = False
        if not self._client.has_answered:
            await self._client.refuse(refusal)
            await self._client.end()

    def _advise(self, reason: str) -> str:
        return (
            f"cannot connect: {reason}; allowed: {self._gate.access.policy.describe()}. To reach another host, ask for "
            "it to be added to `network.allow` of this sandbox."
        )

    def _report_exchange(self, exchange: HttpExchange) -> None:
        draft = AuditDraft(self._draft.host, self._draft.port)
        draft.rule, draft.credential = self._draft.rule, self._draft.credential
        draft.method, draft.path, draft.status = exchange.method, self._draft.path or exchange.path, exchange.status
        draft.bytes_in, draft.bytes_out = exchange.bytes_in, exchange.bytes_out
        draft.ms = exchange.ms
        self._is_reported = True
        self._account(draft, exchange.decision, exchange.reason)

    def _conclude(self, decision: Decision, reason: str | None = None) -> None:
        """Report the connection, unless its requests were reported or it never asked for anything."""
        if not self._is_reported and (self._draft.host or reason):
            self._is_reported = True
            self._account(self._draft, decision, reason)

    def _moved(self) -> None:
        """Note that bytes moved: the connection is not idle."""
        if self._target is not None:  # before, the deadline of the head counts
            self._scope.deadline = anyio.current_time() + self._gate.options.idle_timeout_s
