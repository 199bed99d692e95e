"""Egress: the network access of every sandbox of the daemon, and the tasks of the connections that they open.

A `SandboxEgress` is what one sandbox may reach now, what it has reached, and its open connections. Whatever a sandbox
sends through a connection, the worst outcome is the end of that connection.
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol, Self

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from memo.ids import TenantId
from sandboxd.models.network import Decision, EgressRecord, NetworkAccess
from sandboxd.network.access import EgressAccess, bound_of, check_options, needs_packages, plan_access
from sandboxd.network.addresses import PinnedHosts, Resolver, SystemResolver
from sandboxd.network.audit import AuditDraft, AuditLog
from sandboxd.network.byte_stream import ByteStream
from sandboxd.network.certificates import SandboxAuthority, trust_bundle
from sandboxd.network.credentials import CredentialStore, NoteSecret, login
from sandboxd.network.meter import Meter
from sandboxd.network.package_sources import PackageSources, read_package_sources
from sandboxd.network.proxy import Gate, ProxyConnection
from sandboxd.network.rules import EgressPolicy
from sandboxd.network.tls_stream import verifying_context
from sandboxd.network_settings import NetworkOptions

_log = structlog.get_logger("sandboxd.network")

_SOURCES_S = 600.0
"""How long the answers of the package managers are used."""


class SandboxStream(ByteStream, Protocol):
    """A connection that a process in a sandbox has opened. `runner.stream.AcceptedStream` implements it."""

    def close(self) -> None:
        """End it on both sides. It may have ended already."""


Announce = Callable[[EgressRecord], None]
Serve = Callable[[ProxyConnection, SandboxStream], Coroutine[None, None, None]]


class Egress(anyio.AsyncContextManagerMixin):
    """Owns the tasks of all connections. Use it as an async context manager."""

    def __init__(
        self,
        options: NetworkOptions,
        *,
        resolver: Resolver | None = None,
        noted: NoteSecret = lambda forms: None,
    ) -> None:
        """`noted` gets the forms of every secret that is read, which must not appear anywhere."""
        check_options(options)
        self.options = options
        self._given_resolver = resolver
        self.resolver: Resolver
        self.credentials = CredentialStore(options.credentials, noted)
        self.noted = noted
        self.counts: Counter[str] = Counter()
        """Connections by decision."""
        self._tasks: TaskGroup | None = None
        self._sources: PackageSources | None = None
        self._sources_expire = 0.0
        self._asking = anyio.Lock()
        self._trusted: dict[tuple[Path, ...], ssl.SSLContext] = {}

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        async with anyio.create_task_group() as self._tasks:
            self.resolver = PinnedHosts(self.options.hosts, self._given_resolver or SystemResolver(self._tasks))
            try:
                yield self
            finally:
                tasks, self._tasks = self._tasks, None  # a stream may still arrive: `start` refuses it from now on
                tasks.cancel_scope.cancel()

    async def plan(self, tenant: TenantId, network: NetworkAccess) -> EgressAccess:
        """Return what a sandbox of this tenant may reach, or raise InvalidRequest with the reason."""
        sources = await self._package_sources() if needs_packages(network, bound_of(tenant, self.options)) else None
        return plan_access(tenant, network, self.options, sources)

    def open(self, announce: Announce) -> SandboxEgress:
        """Return the egress of one sandbox. `announce` gets every record that its audit log gets."""
        return SandboxEgress(self, announce)

    def start(self, serve: Serve, connection: ProxyConnection, stream: SandboxStream) -> None:
        """Serve a connection in a task of its own."""
        if self._tasks is None:
            stream.close()
        else:
            self._tasks.start_soon(serve, connection, stream)

    async def trust(self, ca_files: tuple[Path, ...]) -> ssl.SSLContext:
        """Return what the daemon trusts when it connects to a host of a credential."""
        if ca_files not in self._trusted:
            self._trusted = {ca_files: await to_thread.run_sync(verifying_context, ca_files)}
        return self._trusted[ca_files]

    async def _package_sources(self) -> PackageSources:
        async with self._asking:
            if self._sources is None or anyio.current_time() >= self._sources_expire:
                self._sources = await read_package_sources()
                for problem in self._sources.problems:
                    _log.warning("preset:packages is incomplete", why=problem)
                self._sources_expire = anyio.current_time() + _SOURCES_S
            return self._sources


class SandboxEgress:
    """The egress of one sandbox, across its containers."""

    def __init__(self, egress: Egress, announce: Announce) -> None:
        self._egress = egress
        self._announce = announce
        self._gate: Gate | None = None
        self._open: set[ProxyConnection] = set()
        self.audit = AuditLog()
        self.meter = Meter(egress.options.max_mb, egress.options.rate_mb_s)

    @property
    def access(self) -> EgressAccess | None:
        """What the sandbox may reach now; None if it may reach nothing."""
        return None if self._gate is None or self._gate.problem else self._gate.access

    async def grant(self, access: EgressAccess, secret: str) -> bytes:
        """Allow this access, cut connections that are no longer allowed, and return the CA bundle for the container."""
        gate = self._gate = await self._make_gate(access, secret)
        for connection in list(self._open):
            if not connection.is_allowed_by(access):
                connection.cut("the sandbox's network access was changed")
        return await to_thread.run_sync(trust_bundle, gate.authority.certificate_pem, _ca_files(access))

    def withdraw(self, problem: str) -> None:
        """Allow nothing, and cut every connection. The problem is what later connections are told."""
        if self._gate is not None:
            self._gate = replace(self._gate, access=EgressAccess(EgressPolicy(())), problem=problem)
        self.cut()

    def cut(self) -> None:
        """End every open connection, because the container goes."""
        for connection in list(self._open):
            connection.cut("the sandbox was stopped")

    def close(self) -> None:
        """End everything, because the sandbox is removed."""
        self.cut()
        self.audit.close()

    def accept(self, stream: SandboxStream) -> None:
        """Take a connection that a process in the sandbox has opened."""
        if self._gate is None:
            stream.close()
        else:
            self._egress.start(self._serve, ProxyConnection(self._gate, stream, self._report), stream)

    async def _serve(self, connection: ProxyConnection, stream: SandboxStream) -> None:
        self._open.add(connection)
        try:
            await connection.run()
        except Exception as error:  # noqa: BLE001  # one connection must not end the daemon
            _log.error("a connection failed", exc_info=error)
        finally:
            self._open.discard(connection)
            stream.close()

    async def _make_gate(self, access: EgressAccess, secret: str) -> Gate:
        egress = self._egress
        logins = () if access.sources is None else access.sources.logins
        return Gate(
            access=access,
            options=egress.options,
            resolver=egress.resolver,
            credentials=egress.credentials,
            authority=await to_thread.run_sync(SandboxAuthority, secret),
            trusted=await egress.trust(_ca_files(access)),
            meter=self.meter,
            logins={(each.host, each.port): login(each, egress.noted) for each in logins},
        )

    def _report(self, draft: AuditDraft, decision: Decision, reason: str | None) -> None:
        self._egress.counts[decision] += 1
        self._announce(self.audit.add(draft, decision, reason))


def _ca_files(access: EgressAccess) -> tuple[Path, ...]:
    return () if access.sources is None else access.sources.ca_files
