"""Refusals that only the wire knows: what is wrong with a request before anybody looks at what it asks for."""

from __future__ import annotations

from sandboxd.errors import RequestError


class Forbidden(RequestError):
    code = "request.forbidden"


class MethodNotAllowed(RequestError):
    code = "request.method_not_allowed"

    def __init__(self, allowed: str) -> None:
        super().__init__(f"cannot use this method here: {allowed} is allowed")
        self.allowed = allowed


class UnsupportedMediaType(RequestError):
    code = "request.unsupported_media_type"


class BodyTooLarge(RequestError):
    code = "request.too_large"


class ClientLeft(Exception):  # not an error: there is nobody left to answer
    """The client closed its connection before the answer."""
