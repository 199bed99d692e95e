"""Errors of the HTTP layer alone: problems with a request that are found before its content is read."""

from __future__ import annotations

from sandboxd.errors import RequestError


class Forbidden(RequestError):
    code = "request.forbidden"


class MethodNotAllowed(RequestError):
    code = "request.method_not_allowed"

    def __init__(self, allowed: str) -> None:
        super().__init__(f"cannot use this method here: {allowed} is allowed")
        self.allowed = allowed


class UpgradeRequired(RequestError):
    """The route speaks only WebSocket, and the request is not a handshake of the version that the daemon speaks."""

    code = "request.upgrade_required"


class UnsupportedMediaType(RequestError):
    code = "request.unsupported_media_type"


class BodyTooLarge(RequestError):
    code = "request.too_large"


class ClientLeft(Exception):  # not an error: no client is left to answer
    """Raised when the client closed its connection before the answer."""
