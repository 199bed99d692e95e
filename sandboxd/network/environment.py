"""The environment that leads the usual clients in a sandbox to the proxy, and tells them what to trust."""

from __future__ import annotations

from collections.abc import Mapping

_PROXY = ("HTTP_PROXY", "HTTPS_PROXY")
_BUNDLE = (
    "SSL_CERT_FILE",  # OpenSSL, Python's ssl, Go, Rust's native certificates
    "REQUESTS_CA_BUNDLE",  # requests, pip
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "NPM_CONFIG_CAFILE",  # npm may have one of its own in a file, which would count instead
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
)
_LOCAL = "localhost,127.0.0.1,::1"


def network_environment(port: int, bundle: str, sources: Mapping[str, str]) -> dict[str, str]:
    """Return what every command gets: the proxy at this port, the CA bundle at this path, the package sources."""
    address = f"http://127.0.0.1:{port}"
    lower_and_upper = {spelling: address for name in _PROXY for spelling in (name, name.lower())}
    return {
        **lower_and_upper,
        "NO_PROXY": _LOCAL,
        "no_proxy": _LOCAL,
        "NODE_USE_ENV_PROXY": "1",  # otherwise Node's own fetch ignores the proxy
        **dict.fromkeys(_BUNDLE, bundle),
        **sources,
    }
