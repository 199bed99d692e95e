"""Certificates for tests of TLS, made with openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_pair(directory: Path, name: str) -> tuple[Path, Path]:
    """Make a self-signed certificate for 127.0.0.1 and its key."""
    directory.mkdir(exist_ok=True)
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=sandboxd", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-addext", "keyUsage=critical,digitalSignature,keyCertSign", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    key.chmod(0o600)
    return cert, key
