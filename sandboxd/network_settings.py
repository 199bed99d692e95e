"""NetworkOptions: the settings `SANDBOXD_NETWORK__<NAME>`, or the tables `[network…]` of the file.

What sandboxes may reach, which credentials the daemon adds for them, and the limits on both. It is a validated value:
it resolves no name, reads no secret and starts nothing.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, IPvAnyAddress, field_validator, model_validator

from sandboxd.models.network import CredentialName, HostPattern, NetworkAccess, Port

PresetName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]
HeaderName = Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$")]
PACKAGES = "packages"
"""The preset that is not a setting: it is asked from the package managers of this host."""


class CredentialOptions(BaseModel):
    """A secret that the daemon adds to requests to one host. Sandboxes use it and never see it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: HostPattern
    """The host that gets it: a name, or `*.` and a name."""
    port: Port = 443
    """The port. On any other port than 80 the daemon speaks TLS to the host."""
    private: bool = False
    """Whether the host may have a private address."""
    header: HeaderName | None = None
    """The header that carries it, by default `Authorization`."""
    template: str = "Bearer {}"
    """The header's value, with `{}` where the secret goes."""
    username: str | None = None
    """With a user name, the secret is the password of HTTP's basic authentication."""
    query: str | None = Field(default=None, min_length=1)
    """With a name, the secret is the value of this query parameter instead of a header."""
    variable: str | None = None
    """The environment variable of the daemon with the secret."""
    file: Path | None = None
    """The file with the secret, which is read again when it changes."""
    command: str | tuple[str, ...] = ()
    """The command that prints the secret, as a list or one shell-quoted line."""
    command_ttl_s: float = Field(default=300, gt=0)
    """How long, in seconds, what the command printed is used."""
    methods: tuple[str, ...] = ()
    """The methods that may use it; all if empty."""
    paths: tuple[str, ...] = ()
    """Patterns of the paths that may use it, with `*` within a segment and `**` across segments; all if empty."""
    tenants: tuple[str, ...] = ()
    """The tenants whose sandboxes may name it; all if empty."""

    @field_validator("command")
    @classmethod
    def _words(cls, command: str | tuple[str, ...]) -> tuple[str, ...]:
        return tuple(shlex.split(command)) if isinstance(command, str) else command

    @field_validator("file")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return path.expanduser().absolute() if path else None

    @field_validator("methods")
    @classmethod
    def _upper(cls, methods: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(method.upper() for method in methods)

    @field_validator("template")
    @classmethod
    def _has_a_place(cls, template: str) -> str:
        if template.count("{}") != 1:
            raise ValueError("it must contain {} once, where the secret goes")
        return template

    @model_validator(mode="after")
    def _one_source_and_one_place(self) -> CredentialOptions:
        if sum(map(bool, (self.variable, self.file, self.command))) != 1:
            raise ValueError("it must have exactly one source: variable, file or command")
        if sum(place is not None for place in (self.header, self.username, self.query)) > 1:
            raise ValueError("it must have at most one of header, username and query")
        return self


class NetworkOptions(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    presets: dict[PresetName, tuple[HostPattern, ...]] = {}
    """Lists of hosts by name, for `preset:NAME`. `packages` is always there: the package index, npm registry and apt
    sources that this host itself uses."""
    credentials: dict[CredentialName, CredentialOptions] = {}
    """The credentials that a sandbox may use, by name."""
    tenants: dict[str, NetworkAccess] = {}
    """The most that sandboxes of a tenant may ask for, by tenant; `*` is every other tenant. Without an entry there is
    no bound."""
    hosts: dict[str, tuple[IPvAnyAddress, ...]] = {}
    """Addresses of host names that are not looked up, such as names that only your own network knows. Rules apply to
    them as to all others."""
    max_connections: int = Field(default=64, ge=1, le=256)
    """The most connections of one sandbox at a time. Further ones wait."""
    max_mb: int = Field(default=0, ge=0)
    """The most data, in MiB, that one sandbox may send and receive until the daemon restarts; 0 means no limit."""
    rate_connections_s: float = Field(default=100, ge=0)
    """The most new connections a second of one sandbox, and requests with a credential. Further ones wait; 0 means no
    limit."""
    rate_mb_s: float = Field(default=0, ge=0)
    """The most data, in MiB a second, of one sandbox, both ways together; 0 means no limit."""
    head_timeout_s: float = Field(default=30, gt=0)
    """How long, in seconds, a client in a sandbox may take to send the head of a request, or a TLS greeting."""
    connect_timeout_s: float = Field(default=20, gt=0)
    """How long, in seconds, resolving a name and connecting may take."""
    idle_timeout_s: float = Field(default=900, gt=0)
    """A connection that carries nothing in either direction for this many seconds is closed."""
    preview_host: str | None = None
    """The host name below which preview URLs live, each with its own name: `*.preview_host` must lead to the TCP
    listener. The default is `localhost` if that listener is on a loopback address."""

    @field_validator("presets")
    @classmethod
    def _is_free(cls, presets: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        if PACKAGES in presets:
            raise ValueError(f"{PACKAGES} is asked from the package managers of this host; choose another name")
        return presets
