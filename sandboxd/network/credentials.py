"""CredentialStore and Credential: which request gets which secret, where in the request, and what it may ask for.

A host of a credential accepts only what the credential permits: another request is refused, not sent without the
secret. Nothing here opens a connection.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Final
from urllib.parse import quote, quote_plus, unquote_plus, unquote_to_bytes

import structlog

from sandboxd.errors import CredentialUnavailable
from sandboxd.network.http_head import Headers, HttpRefusal, OutgoingRequest, RequestHead, end_to_end
from sandboxd.network.package_sources import SourceLogin
from sandboxd.network.secret_source import MIN_SECRET_CHARS, ReadSecret, Secret, source_of
from sandboxd.network_settings import CredentialOptions

_log = structlog.get_logger("sandboxd.network")

_NEVER: Final = frozenset({"CONNECT", "TRACE"})
"""TRACE sends the request's headers back; CONNECT opens a tunnel that cannot be checked."""
_OVERRIDES: Final = frozenset(
    {b"x-http-method", b"x-http-method-override", b"x-method-override", b"x-original-url", b"x-rewrite-url"}
)
"""Headers by which some servers take another method or path than the request's own, which was checked."""
_HTTP_PORT: Final = 80
_MAX_PATH_CHARS: Final = 4096
_UNRESERVED = re.compile(r"%(2[DdEe]|3[0-9]|[46][1-9A-Fa-f]|[57][0-9Aa]|5[Ff]|7[Ee])")


NoteSecret = Callable[[Iterable[str]], None]
"""Takes the forms of a secret that has been read, which must not appear anywhere."""


class CredentialStore:
    """The credentials of the settings, by name."""

    def __init__(self, options: Mapping[str, CredentialOptions], noted: NoteSecret = lambda forms: None) -> None:
        self._credentials = {name: Credential(name, each, noted=noted) for name, each in options.items()}

    async def note_all(self) -> None:
        """Note the secrets that can be read now. Commands are not run for it: they may be slow or ask something."""
        for credential in self._credentials.values():
            if not credential.options.command:
                with suppress(CredentialUnavailable):
                    credential.note(await credential.secret())

    def find(self, names: Iterable[str], target_host: str, target_port: int) -> Credential | None:
        """Return the credential, among these names, for a host and port: one for the very name before a pattern."""
        named = [self._credentials[name] for name in names if name in self._credentials]
        fitting = [each for each in named if each.is_for(target_host, target_port)]
        return min(fitting, key=lambda each: each.options.host.startswith("*."), default=None)


class Credential:
    """A secret for one host, with the rules for its use."""

    def __init__(
        self,
        name: str,
        options: CredentialOptions,
        secret: ReadSecret | None = None,
        noted: NoteSecret = lambda forms: None,
        *,
        needs_tls: bool | None = None,
    ) -> None:
        self.name = name
        self._noted = noted
        self.options = options
        self.needs_tls = options.port != _HTTP_PORT if needs_tls is None else needs_tls
        """Whether a plain request is refused."""
        self.secret = secret or source_of(name, options)
        """Read the secret; raise CredentialUnavailable if there is none."""

    def is_for(self, host: str, port: int) -> bool:
        return port == self.options.port and _matches_host(self.options.host, host)

    async def authorise(self, head: RequestHead) -> OutgoingRequest:
        """Return the request with the secret; raise HttpRefusal if it is not permitted or there is no secret."""
        if not self.permits(head.method, head.target):
            raise HttpRefusal(403, self._not_permitted(head))
        try:
            secret = await self.secret()
        except CredentialUnavailable as error:
            # not for the sandbox: the reason is about the daemon's host
            _log.warning("cannot add a credential", credential=self.name, reason=str(error))
            text = f"cannot add the credential {self.name}: its secret is not available; ask the operator of sandboxd"
            raise HttpRefusal(503, text) from None
        self.note(secret)
        # first: `Connection: authorization` of the client must not remove the secret
        target, headers = self.apply(head.target, end_to_end(head.headers), secret)
        return OutgoingRequest(target, headers, tuple(self.forms(secret)))

    def permits(self, method: str, path: str) -> bool:
        """Return whether a request may be made: the method, and the path without its query, must be among the allowed.

        With path patterns, a path that servers read in different ways is not permitted: one with dot segments, empty
        segments, backslashes, a doubly encoded character, or an encoded slash that changes the result.
        """
        if method in _NEVER or (self.options.methods and method not in self.options.methods):
            return False
        if not self.options.paths:
            return True
        path = path.partition("?")[0]
        return all(any(_matches_path(pattern, text) for pattern in patterns) for text, patterns in self._readings(path))

    def apply(self, request_target: str, headers: Headers, secret: Secret) -> tuple[str, Headers]:
        """Return the request's target and headers with the secret, and without what the client sent in its place."""
        kept = [item for item in headers if _header_key(item[0]) not in _OVERRIDES]
        if self.options.query is not None:
            return _with_parameter(request_target, self.options.query, secret.reveal()), kept
        name = (self.options.header or "Authorization").encode()
        same = _header_key(name)
        kept = [item for item in kept if _header_key(item[0]) != same]
        return request_target, [*kept, (name, self._header_value(secret))]

    def forms(self, secret: Secret) -> list[bytes]:
        """Return the forms in which an answer may contain the secret, for redaction."""
        text = secret.reveal()
        if len(text) < MIN_SECRET_CHARS:  # the password of a package source: masked, it would damage packages
            return [_basic(self.options.username or "", text).encode()]
        escaped = [json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]]
        for special in ("<>&", "<>&='"):  # what some writers of JSON escape too, so that it may stand in HTML
            escaped.append(re.sub(f"[{special}]", lambda match: f"\\u{ord(match[0]):04x}", escaped[0]))
        encoded = [quote(text, safe=""), quote(text), quote_plus(text)]
        lower = [re.sub("%..", lambda match: match[0].lower(), each) for each in encoded]
        marked_up = [html.escape(text, quote=False), html.escape(text), html.escape(text).replace("&#x27;", "&#39;")]
        slashed = [each.replace("/", "\\/") for each in escaped]
        forms = [text, *escaped, *slashed, *encoded, *lower, *marked_up]
        if self.options.username is not None:
            forms.append(_basic(self.options.username, text))
        return list(dict.fromkeys(form.encode() for form in forms))

    def note(self, secret: Secret) -> None:
        """Tell the rest of the daemon in which forms the secret must not appear."""
        if len(secret.reveal()) >= MIN_SECRET_CHARS:
            self._noted([form.decode() for form in self.forms(secret)])

    def _not_permitted(self, head: RequestHead) -> str:
        path = head.target.partition("?")[0][:200]
        methods = ", ".join(self.options.methods) or "any method"
        paths = ", ".join(self.options.paths) or "any path"
        return (
            f"cannot {head.method} {path}: requests to this host use the credential {self.name}, which permits "
            f"{methods} on {paths}, written without dot segments or repeated slashes"
        )

    def _header_value(self, secret: Secret) -> bytes:
        if self.options.username is not None:
            return b"Basic " + _basic(self.options.username, secret.reveal()).encode()
        return self.options.template.replace("{}", secret.reveal()).strip().encode()

    def _readings(self, path: str) -> Iterable[tuple[str, list[list[str]]]]:
        """Yield the path as servers may read it, each with the patterns read the same way."""
        if not _is_plain(path):
            yield path, []
            return
        for decodes_slash in (False, True):
            yield _decoded(path, decodes_slash), self._patterns[decodes_slash]

    @cached_property
    def _patterns(self) -> tuple[list[list[str]], list[list[str]]]:
        opaque = [_parts(_decoded(path, False)) for path in self.options.paths]
        return opaque, [_parts(_decoded(path, True)) for path in self.options.paths]


def _matches_host(pattern: str, host: str) -> bool:
    pattern, host = pattern.lower().rstrip("."), host.lower().rstrip(".").strip("[]")
    if pattern.startswith("*."):
        return host.endswith(pattern[1:]) and len(host) >= len(pattern)
    return host == pattern.strip("[]")


def _is_plain(path: str) -> bool:
    """Return whether every server reads the same segments in this path, but for encoded slashes."""
    if len(path) > _MAX_PATH_CHARS or not path.startswith("/") or not path.isascii():
        return False
    if re.search(r"%(?![0-9A-Fa-f]{2})|%25|[#\\]", path):
        return False
    try:
        text = unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        return False
    if "\\" in text or any(ord(char) < 32 or 127 <= ord(char) < 160 for char in text):
        return False
    segments = text.split("/")[1:]
    # `..;x` is a dot segment to servers that cut parameters off
    return all(segments[:-1]) and not any(segment.partition(";")[0] in {".", ".."} for segment in segments)


def _decoded(path: str, decodes_slash: bool) -> str:
    """Return the path with one spelling for each character: unreserved ones plain, others encoded in capitals."""
    text = _UNRESERVED.sub(lambda match: chr(int(match[1], 16)), path)
    text = re.sub("%..", lambda match: match[0].upper(), text)
    return text.replace("%2F", "/") if decodes_slash else text


def _parts(pattern: str) -> list[str]:
    return re.findall(r"\*\*|.", pattern)


def _matches_path(pattern: list[str], text: str) -> bool:
    """Return whether the parts of a pattern match: `**` any text, `*` any text within a segment, others themselves.

    Every place in the pattern that the text can have reached is followed at once. A regular expression would try one
    after the other, and a long path could keep it busy for seconds.
    """
    places = _skip_stars(pattern, {0})
    for char in text:
        reached = set()
        for place in places:
            part = pattern[place] if place < len(pattern) else ""
            if part == "**" or (part == "*" and char != "/"):
                reached.add(place)
            elif part == char:
                reached.add(place + 1)
        places = _skip_stars(pattern, reached)
    return len(pattern) in places


def _skip_stars(pattern: list[str], places: set[int]) -> set[int]:
    for place in sorted(places):
        while place < len(pattern) and pattern[place] in {"*", "**"}:
            place += 1
            places.add(place)
    return places


def _header_key(name: bytes) -> bytes:
    return name.lower().replace(b"_", b"-")  # many servers read both as the same name


def _basic(username: str, password: str) -> str:
    return base64.b64encode(f"{username}:{password}".encode()).decode()


def _with_parameter(target: str, name: str, value: str) -> str:
    path, _, query = target.partition("?")
    kept = [item for item in query.split("&") if item and unquote_plus(item.partition("=")[0]) != name]
    own = f"{quote(name, safe='')}={quote(value, safe='')}"
    return f"{path}?{'&'.join([*kept, own])}"


def login(source: SourceLogin, noted: NoteSecret = lambda forms: None) -> Credential:
    """Return the credential of a package source that needs a user name and password."""
    options = CredentialOptions.model_construct(host=source.host, port=source.port, username=source.username)

    async def read() -> Secret:
        return Secret(source.password)

    return Credential(f"packages:{source.host}", options, read, noted, needs_tls=source.is_tls)
