"""Previews: which host name opens which port of which sandbox, and until when.

A name is one label: a random id, the expiry and a signature over both and over what the id stands for. It says nothing
about tenant or session. The table of ids is durable and small; expired entries are removed. It serves nothing itself.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from anyio import to_thread

from memo.ids import SessionRef
from sandboxd.errors import HostCorrupt, LimitReached, host_error
from sandboxd.host_database import HostDatabase
from sandboxd.permissions import PRIVATE_FILE, tighten

MAX_PREVIEWS = 8192
MAX_TENANT_PREVIEWS = 1024
MAX_SESSION_PREVIEWS = 32

_ID_BYTES = 10
_EXPIRY_BYTES = 5
_MAC_BYTES = 20
_LABEL_CHARS = (_ID_BYTES + _EXPIRY_BYTES + _MAC_BYTES) * 8 // 5
_KEY_BYTES = 32
_CONTEXT = b"sandboxd preview 1\0"
_ADVICE = "stop the daemon and move the file away: preview URLs that were given out then end"
_MIGRATIONS = (
    (
        """CREATE TABLE previews (
            id BLOB PRIMARY KEY,
            tenant TEXT NOT NULL,
            session TEXT NOT NULL,
            sandbox TEXT NOT NULL,
            port INTEGER NOT NULL,
            expires_s INTEGER NOT NULL
        ) WITHOUT ROWID""",
    ),
)


@dataclass(frozen=True, slots=True)
class PreviewAddress:
    """Where previews are served: below this host name, on the TCP listener."""

    host: str
    port: int
    is_tls: bool = False

    @property
    def scheme(self) -> str:
        return "https" if self.is_tls else "http"

    def url(self, label: str) -> str:
        is_default = self.port == (443 if self.is_tls else 80)
        return f"{self.scheme}://{label}.{self.host}{'' if is_default else f':{self.port}'}/"

    def label_in(self, host: str) -> str | None:
        """Return what precedes the preview host in a Host header; None if it is not below the preview host."""
        name = host.lower().partition(":")[0].removesuffix(".")
        suffix = f".{self.host}"
        return name.removesuffix(suffix) if name.endswith(suffix) else None


def find_address(tcp: str | None, preview_host: str | None, *, is_tls: bool) -> PreviewAddress | None:
    """Return where previews are served; None without a TCP listener, or without a name that leads to it."""
    if tcp is None:
        return None
    host, _, port = tcp.rpartition(":")
    name = preview_host or ("localhost" if _is_loopback(host.strip("[]")) else None)
    return None if name is None else PreviewAddress(name.lower().strip("."), int(port), is_tls)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True, slots=True)
class PreviewGrant:
    """What one preview opens."""

    id: bytes
    ref: SessionRef
    sandbox: str
    """The sandbox's identity: another sandbox of the same session is not meant."""
    port: int
    expires_s: int
    """Seconds since 1970."""

    @property
    def expires_at(self) -> datetime:
        return datetime.fromtimestamp(self.expires_s, UTC)


class Previews:
    """Owns the table and the key. One daemon uses them at a time."""

    def __init__(self, data: Path, address: PreviewAddress, *, clock: Callable[[], float] = time.time) -> None:
        self.address = address
        self.clock = clock
        self._key_path = data / "previews.key"
        self._database = HostDatabase(data / "previews.db", "the table of previews", _MIGRATIONS, advice=_ADVICE)
        self._key = b""
        self._grants: dict[bytes, PreviewGrant] = {}

    async def __aenter__(self) -> Self:
        await self._database.open()
        try:
            self._key = await to_thread.run_sync(_load_key, self._key_path)
            await self._remove_expired()
            for row in await self._database.run(lambda db: db.execute(_SELECT).fetchall()):
                grant = _read_row(*row)
                self._grants[grant.id] = grant
        except BaseException:
            await self._database.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._database.aclose()

    async def grant(self, ref: SessionRef, sandbox: str, port: int, ttl_s: float) -> PreviewGrant:
        """Make a preview, on disk before it is returned; raise LimitReached if there are too many."""
        await self._remove_expired()
        self._check_room(ref)
        expires_s = int(self.clock() + max(1.0, ttl_s))
        grant = PreviewGrant(secrets.token_bytes(_ID_BYTES), ref, sandbox, port, expires_s)
        row = (grant.id, ref.tenant, ref.session, sandbox, port, expires_s)
        self._grants[grant.id] = grant  # before the write, so that the limits hold for requests at the same time
        try:
            await self._database.run(lambda db: db.execute(_INSERT, row))
        except BaseException:
            self._grants.pop(grant.id, None)
            raise
        return grant

    def label(self, grant: PreviewGrant) -> str:
        """Return the grant's host name, one label of lower-case base32."""
        head = grant.id + grant.expires_s.to_bytes(_EXPIRY_BYTES, "big")
        return base64.b32encode(head + self._sign(head, grant)).decode().lower()

    def url(self, grant: PreviewGrant) -> str:
        return self.address.url(self.label(grant))

    def find(self, label: str) -> PreviewGrant | None:
        """Return what a label opens now; None if it is wrong or has expired."""
        if len(label) != _LABEL_CHARS:
            return None
        try:
            raw = base64.b32decode(label.upper().encode("ascii"))
        except ValueError:
            return None
        head, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
        grant = self._grants.get(head[:_ID_BYTES])
        if grant is None or not hmac.compare_digest(mac, self._sign(head, grant)):
            return None
        expires_s = int.from_bytes(head[_ID_BYTES:], "big")
        return grant if expires_s == grant.expires_s and self.clock() < expires_s else None

    async def forget(self, grant: PreviewGrant) -> None:
        """Remove a preview whose sandbox is gone."""
        if self._grants.pop(grant.id, None) is not None:
            await self._database.run(lambda db: db.execute("DELETE FROM previews WHERE id = ?", (grant.id,)))

    def _sign(self, head: bytes, grant: PreviewGrant) -> bytes:
        meaning = json.dumps([grant.ref.tenant, grant.ref.session, grant.sandbox, grant.port]).encode()
        return hmac.new(self._key, _CONTEXT + head + meaning, hashlib.sha256).digest()[:_MAC_BYTES]

    def _check_room(self, ref: SessionRef) -> None:
        tenants = Counter(grant.ref.tenant for grant in self._grants.values())
        of_session = sum(grant.ref == ref for grant in self._grants.values())
        for count, most, owner in (
            (of_session, MAX_SESSION_PREVIEWS, "this session"),
            (tenants[ref.tenant], MAX_TENANT_PREVIEWS, "this tenant"),
            (len(self._grants), MAX_PREVIEWS, "the daemon"),
        ):
            if count >= most:
                raise LimitReached(
                    f"cannot make a preview: {owner} has {count}; wait until one expires, and give shorter ones"
                )

    async def _remove_expired(self) -> None:
        now = self.clock()
        self._grants = {key: grant for key, grant in self._grants.items() if grant.expires_s > now}
        await self._database.run(lambda db: db.execute("DELETE FROM previews WHERE expires_s <= ?", (now,)))


_SELECT = "SELECT id, tenant, session, sandbox, port, expires_s FROM previews"
_INSERT = "INSERT INTO previews (id, tenant, session, sandbox, port, expires_s) VALUES (?, ?, ?, ?, ?, ?)"


def _read_row(id_: bytes, tenant: str, session: str, sandbox: str, port: int, expires_s: int) -> PreviewGrant:
    return PreviewGrant(id_, SessionRef.of(tenant, session), sandbox, port, expires_s)


def _load_key(path: Path) -> bytes:
    """Return the signing key; make it if there is none."""
    try:
        if not path.exists():
            draft = path.with_suffix(".new")
            draft.unlink(missing_ok=True)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE), "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            draft.rename(path)
        tighten(path)
        key = path.read_bytes()
    except OSError as error:
        raise host_error(f"use the key of previews {path.name}", error) from error
    if len(key) != _KEY_BYTES:
        raise HostCorrupt(
            f"cannot use the key of previews {path.name}: it does not have {_KEY_BYTES} bytes; remove the file, "
            "and preview URLs that were given out end"
        )
    return key
