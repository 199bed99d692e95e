"""Servers on loopback that play the hosts of the world: one authority, many names, an HTTPS and an HTTP port.

They serve files, echo requests, and answer as a package index and an npm registry. Every request is recorded.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import ssl
import tarfile
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class SeenRequest:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes = field(repr=False)


class OriginServers:
    """Listens while its block runs. `names` are the hosts that its certificate is for."""

    def __init__(self, directory: Path, *names: str, files: Path | None = None) -> None:
        self.names = names
        self.files = files
        self.seen: list[SeenRequest] = []
        self.answers: dict[str, Callable[[SeenRequest], tuple[int, dict[str, str], bytes]]] = {}
        """Answers of single paths, before everything else."""
        self.ca_file = directory / "origin-ca.pem"
        chain = _make_chain(self.ca_file, directory / "origin.pem", names)
        handler = type("Handler", (_Handler,), {"servers": self})
        self._plain = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._secure = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        self._secure.socket = context.wrap_socket(self._secure.socket, server_side=True, do_handshake_on_connect=False)
        self.port: int = self._secure.server_address[1]
        self.http_port: int = self._plain.server_address[1]

    def __enter__(self) -> Self:
        for server in (self._plain, self._secure):
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in (self._plain, self._secure):
            server.shutdown()
            server.server_close()

    def answer(self, request: SeenRequest) -> tuple[int, dict[str, str], bytes]:
        path = request.path.partition("?")[0]
        if path in self.answers:
            return self.answers[path](request)
        if path.startswith("/echo"):
            echo = {"method": request.method, "path": request.path, "headers": request.headers}
            return 200, {"Content-Type": "application/json"}, json.dumps(echo).encode() + request.body
        if (project := re.fullmatch(r"/simple/(\w+)/", path)) is not None:
            name, wheel = tiny_wheel(project[1])
            digest = hashlib.sha256(wheel).hexdigest()
            page = f'<!DOCTYPE html><html><body><a href="/files/{name}#sha256={digest}">{name}</a></body></html>'
            return 200, {"Content-Type": "text/html"}, page.encode()
        if (file_name := re.fullmatch(r"/files/(\w+)-1.0-py3-none-any.whl", path)) is not None:
            return 200, {"Content-Type": "application/octet-stream"}, tiny_wheel(file_name[1])[1]
        if path == "/tinynpm":
            host = request.headers["host"]
            return 200, {"Content-Type": "application/json"}, json.dumps(_npm_metadata(f"https://{host}")).encode()
        if path == "/tinynpm/-/tinynpm-1.0.0.tgz":
            return 200, {"Content-Type": "application/octet-stream"}, _TARBALL
        if self.files is not None:
            file = (self.files / path.lstrip("/")).resolve()
            if file.is_relative_to(self.files.resolve()) and file.is_file():
                return 200, {"Content-Type": "application/octet-stream"}, file.read_bytes()
        return 404, {}, b"nothing here\n"


class _Handler(BaseHTTPRequestHandler):
    servers: OriginServers
    protocol_version = "HTTP/1.1"
    timeout = 60

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = SeenRequest(self.command, self.path, headers, body)
        self.servers.seen.append(request)
        status, answer_headers, content = self.servers.answer(request)
        self.send_response(status)
        for name, value in answer_headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = _serve

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: `seen` has every request."""

    def handle(self) -> None:
        try:
            super().handle()
        except (OSError, ssl.SSLError):
            self.close_connection = True  # the client has gone, or its handshake was refused


def tiny_wheel(project: str) -> tuple[str, bytes]:
    """Return the name and the bytes of a wheel that pip installs. The bytes are always the same."""
    files = {
        f"{project}.py": "ANSWER = 42\n",
        f"{project}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n",
        f"{project}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{project}-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return f"{project}-1.0-py3-none-any.whl", packed.getvalue()


def _tiny_tarball() -> bytes:
    files = {
        "package/package.json": json.dumps({"name": "tinynpm", "version": "1.0.0", "main": "index.js"}),
        "package/index.js": "module.exports = 42;\n",
    }
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


_TARBALL = _tiny_tarball()


def _npm_metadata(base: str) -> dict[str, object]:
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(_TARBALL).digest()).decode()
    dist = {"tarball": f"{base}/tinynpm/-/tinynpm-1.0.0.tgz", "integrity": integrity}
    version = {"name": "tinynpm", "version": "1.0.0", "main": "index.js", "dist": dist}
    return {"name": "tinynpm", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}


def _make_chain(ca_file: Path, chain_file: Path, names: tuple[str, ...]) -> Path:
    """Write the certificate of a new authority, and a certificate of its for these names with its key."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    ca = _certificate(issuer, issuer, ca_key.public_key(), ca_key, x509.BasicConstraints(ca=True, path_length=None))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    hosts = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    leaf = _certificate(issuer, subject, key.public_key(), ca_key, hosts)
    ca_file.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain_file.write_bytes(leaf.public_bytes(serialization.Encoding.PEM) + private)
    chain_file.chmod(0o600)
    return chain_file


def _certificate(
    issuer: x509.Name,
    subject: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(issuer_name=issuer, subject_name=subject, public_key=public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
