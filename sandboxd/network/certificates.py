"""SandboxAuthority: the certificate authority that one sandbox trusts for the hosts of its credentials.

Its key is derived from the sandbox's secret, so a restarted daemon is the authority that running containers already
trust. Keys exist only in memory, never in a file. It decides nothing about which hosts get a certificate.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import ssl
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Final

import anyio.to_thread
import certifi
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sandboxd.errors import InvalidRequest

_SUBJECT: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sandboxd credentials of this sandbox")])
_VALID_FROM: Final = datetime(2025, 1, 1, tzinfo=UTC)
_VALID_UNTIL: Final = datetime(2055, 1, 1, tzinfo=UTC)
_LEAF_LIFETIME: Final = timedelta(days=30)
_RENEW_BEFORE: Final = timedelta(days=7)
_CLOCK_SKEW: Final = timedelta(days=1)
_MAX_LEAVES: Final = 64
_P256_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class SandboxAuthority:
    """Sign certificates for hosts, which only a client that trusts `certificate_pem` accepts."""

    def __init__(self, secret: str) -> None:
        self._key = _authority_key(secret)
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: OrderedDict[str, tuple[ssl.SSLContext, datetime]] = OrderedDict()

    @cached_property
    def certificate_pem(self) -> bytes:
        """Return the authority's certificate. The same secret always gives the same bytes."""
        public = self._key.public_key()
        identifier = x509.SubjectKeyIdentifier.from_public_key(public)
        certificate = (
            x509.CertificateBuilder(issuer_name=_SUBJECT, subject_name=_SUBJECT, public_key=public)
            .serial_number(int.from_bytes(hashlib.sha256(identifier.digest).digest()[:16]) >> 1 or 1)
            .not_valid_before(_VALID_FROM)
            .not_valid_after(_VALID_UNTIL)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(identifier, critical=False)
            .sign(self._key, hashes.SHA256(), ecdsa_deterministic=True)
        )
        return certificate.public_bytes(serialization.Encoding.PEM)

    async def context_for(self, host: str) -> ssl.SSLContext:
        """Return the TLS context of a server with this DNS name or IP address, for HTTP/1.1 only."""
        known = self._contexts.get(host)
        if known is None or known[1] - _RENEW_BEFORE < datetime.now(UTC):
            # a thread, because signing and loading take about a millisecond
            known = self._contexts[host] = await anyio.to_thread.run_sync(self._make_context, host)
        self._contexts.move_to_end(host)
        while len(self._contexts) > _MAX_LEAVES:
            self._contexts.popitem(last=False)
        return known[0]

    def _make_context(self, host: str) -> tuple[ssl.SSLContext, datetime]:
        leaf = self._sign_leaf(host)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.set_alpn_protocols(["http/1.1"])
        _load_chain(context, leaf, self._leaf_key)
        return context, leaf.not_valid_after_utc

    def _sign_leaf(self, host: str) -> x509.Certificate:
        now = datetime.now(UTC)
        issuer = self._key.public_key()
        public = self._leaf_key.public_key()
        return (
            x509.CertificateBuilder(issuer_name=_SUBJECT, subject_name=x509.Name([]), public_key=public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + _LEAF_LIFETIME)
            .add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def trust_bundle(authority_pem: bytes, extra_files: Iterable[Path] = ()) -> bytes:
    """Return, as one PEM file, the certificates that this host trusts, those of extra files, and the sandbox's own.

    Only certificates are copied: a private key that lies in the same file never reaches the container.
    """
    found = dict.fromkeys(_host_certificates())
    for path in extra_files:
        found.update(dict.fromkeys(read_certificates(path)))
    found.update(dict.fromkeys(_CERTIFICATE.findall(authority_pem)))
    return b"\n".join(found) + b"\n"


def read_certificates(path: Path) -> list[bytes]:
    """Return the certificates of a PEM file; raise InvalidRequest if it has none."""
    try:
        certificates = _CERTIFICATE.findall(path.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"cannot read the CA file {path}: {error.strerror or error}") from error
    if not certificates:
        raise InvalidRequest(f"cannot use the CA file {path}: it contains no certificate; give a PEM file")
    return certificates


def _host_certificates() -> Iterator[bytes]:
    paths = ssl.get_default_verify_paths()
    if paths.cafile:
        yield from _CERTIFICATE.findall(Path(paths.cafile).read_bytes())
    elif paths.capath and (files := sorted(Path(paths.capath).glob("*.0"))):  # OpenSSL's names: hash and number
        for path in files:
            yield from _CERTIFICATE.findall(path.read_bytes())
    else:
        yield from _CERTIFICATE.findall(Path(certifi.where()).read_bytes())


def _authority_key(secret: str) -> ec.EllipticCurvePrivateKey:
    # 48 bytes for a 32-byte order: the remainder is then as good as uniform
    derivation = HKDF(algorithm=hashes.SHA256(), length=48, salt=None, info=b"sandboxd credential authority 1")
    number = int.from_bytes(derivation.derive(secret.encode()))
    return ec.derive_private_key(number % (_P256_ORDER - 1) + 1, ec.SECP256R1())


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)


def _load_chain(context: ssl.SSLContext, leaf: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """Give the context its certificate and key. OpenSSL reads them only from a file, so this file is in memory."""
    pem = leaf.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
